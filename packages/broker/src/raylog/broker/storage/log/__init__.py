"""One partition's log: segments in a directory and what is derived from them; all that appends, reads and removes.

``log`` is the log, ``contents`` what it is made of; ``reading`` and ``timestamps`` find offsets, ``first_read`` checks
what lay on the disk; ``truncation`` removes from the end, ``cleaning`` and ``doomed`` from the front; ``snapshots``
keep producers; ``validation`` and ``decompression`` say which batches are taken. Called by ``partition`` and
``directories``. Begin with ``log``.
"""
