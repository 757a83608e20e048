"""What the kernel's page cache has of a file."""

from __future__ import annotations

import ctypes
import mmap
import os

from raylog.broker.storage.disk.files import File

__all__ = ["is_dropped"]


def is_dropped(file: File) -> bool:
    """Whether the page cache has nothing of it, as it was asked to; it may need a while for that.

    Asked by mincore: to try to read, even with RWF_NOWAIT, has the system read ahead.
    """
    size = file.size()
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
        pages = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
        view = ctypes.c_char.from_buffer(mapped)
        try:
            failed = ctypes.CDLL(None, use_errno=True).mincore(
                ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(size), pages
            )
        finally:
            del view
    assert not failed
    return not any(page & 1 for page in pages)
