"""What touches the disk: the FileSystem port, and the small files beside a log.

``files`` is the port: each byte and each name goes through it; ``slices`` are parts of files on their way to a socket.
``checkpoint`` and ``index_sums`` are files that are replaced whole, ``room`` sets room aside for a growing log,
``health`` says whether a disk can be trusted. Called by all rooms of storage. Begin with ``files``.
"""
