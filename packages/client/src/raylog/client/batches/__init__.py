"""◆ Records on their way into batches and out of them: by rows into the accumulator, by columns through Arrow.

``accumulator`` gathers records, ``partitioner`` and ``row_partitions`` choose partitions. ``decode`` and ``encode`` are
the doors between batches and columns (``column_schema``), by the kernel or by ``numpy_decode`` and ``numpy_encode``.
Called by produce, fetch and all who read columns; it calls ``protocol`` alone. Begin with ``accumulator`` or
``decode``.
"""
