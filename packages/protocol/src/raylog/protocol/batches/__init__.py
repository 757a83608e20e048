"""◆ Record batches, format 2, as bytes: header, records, compression, and the compiled kernel for columns.

``header`` reads, checks and stamps; ``rows`` is the inner loop for records, ``decode_kernel`` and ``encode_kernel`` the
ones for columns (``column_buffers``), which Cython compiles where it can (``compiled``); ``transactions`` says what is
visible. Called by ``records``, by ``wire``, and by whatever handles whole batches. Begin with ``header``.
"""
