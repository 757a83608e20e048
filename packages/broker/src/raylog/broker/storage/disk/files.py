"""The FileSystem port: every byte that storage reads or writes, and every name it makes, goes through here.

The real one is :class:`RealFileSystem`; tests hand in ones that crash, lose unsynced writes or fail. All
methods raise OSError as the operating system does; the layers above turn it into StorageError and take the
log directory offline (see health.py).

Who closes a file: each :class:`File` counts its holders. The one that opened it is the first, and gives it up by
:meth:`File.close`; every reader and every slice (see ``slices``) on its way to a socket is another. Unlinking or
closing a segment during a read or a send is therefore safe: the descriptor lives until the last hold is released. A
file that is closed already never reaches the operating system: it raises :class:`FileClosed`, which is no failure of a
disk.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from raylog.protocol.errors import NotLeaderOrFollower, StorageError

Buffer = bytes | bytearray | memoryview

_fallocate = ctypes.CDLL(None).fallocate  # os.posix_fallocate would make the file longer
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE of <linux/falloc.h>

NO_ANSWER = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
"""To RWF_NOWAIT: the file system cannot say whether a read would wait."""

PIECE_BYTES = 128 * 1024
"""The most that one system call writes. For more, the kernel caches it in as large pieces of free memory, and where
these are rare or were never used, a write costs up to seven times as much (docs/performance.md).
"""


class LogClosed(NotLeaderOrFollower, StorageError):
    """This process has closed the log, as it does with one that it deletes: nobody leads or follows it here any more.

    Clients are told so, and not of a disk that failed.
    """


class FileClosed(LogClosed):
    """This process has closed the file, as it does with what it deletes: look for what is there in its place.

    No OSError, so that Health never takes it for a failure of the disk.
    """


class WouldWait(Exception):
    """What is to be read is not in memory, and the caller may not wait for the disk. Nothing was done.

    No OSError: nothing has failed.
    """


class File(Protocol):
    """An open file with positioned reads and writes; safe to share between threads that hold it.

    Everything but :meth:`close`, :meth:`acquire` and :meth:`release` raises FileClosed once the last hold is gone.
    """

    path: Path

    def fileno(self) -> int:
        """The descriptor, for sendfile; OSError (EBADF) when there is none."""

    def size(self) -> int:
        """Length in bytes."""

    def pread(self, length: int, position: int) -> bytes:
        """Up to ``length`` bytes from ``position``; fewer only at the file's end."""

    def pread_cached(self, length: int, position: int) -> Buffer:
        """``length`` bytes from ``position``. WouldWait when not all of them are in the page cache, or in the file."""

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write all ``buffers`` at ``position``; answers their length. OSError: a part may be written."""

    def truncate(self, size: int) -> None: ...

    def reserve(self, position: int, length: int) -> None:
        """Expect writes there, beyond the end: the disk may set room aside. A hint; the size stays, nothing fails."""

    def forget(self, position: int, length: int) -> None:
        """These bytes were read once and are not expected to be read soon: the page cache may drop them. A hint."""

    def fdatasync(self) -> None:
        """Make content and length durable. After a failure the unsynced writes may be gone: never retry."""

    def acquire(self) -> bool:
        """Count one more holder; False when the file is closed already."""

    def release(self) -> None:
        """Give up one acquired hold; the last one closes the descriptor."""

    def close(self) -> None:
        """Give up the hold of the one that opened it. Idempotent; any thread may call it."""


class FileLock(Protocol):
    """A lock on a file against other processes; it ends with the process, too."""

    def is_in_place(self) -> bool:
        """False once another file, or none, is at its path: then others can lock what is there."""

    def release(self) -> None: ...


class Space(NamedTuple):
    """Bytes on a volume."""

    total: int
    usable: int
    """What we may still write; less than what is free where some is kept for the administrator."""


class FileSystem(Protocol):
    """Names and files. Paths are absolute. A name is durable only after :meth:`fsync_dir` of its directory."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; ``create`` makes an empty file where there is none."""

    def exists(self, path: Path) -> bool: ...

    def list_dir(self, path: Path) -> list[str]:
        """Names in the directory, sorted."""

    def make_dirs(self, path: Path) -> None:
        """Create the directory and its missing parents, durably; no error when it exists."""

    def rename(self, old: Path, new: Path) -> None:
        """Replace ``new`` by ``old`` atomically."""

    def unlink(self, path: Path) -> None: ...

    def remove_dir(self, path: Path) -> None:
        """Remove an empty directory."""

    def fsync_dir(self, path: Path) -> None:
        """Make the directory's names durable."""

    def lock(self, path: Path) -> FileLock | None:
        """Lock the file, creating it; None when another holds it."""

    def space(self, path: Path) -> Space:
        """The room on the volume that holds the directory."""


class RealFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "_holders", "_is_owned", "_lock", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._holders = 1
        self._is_owned = True
        self._lock = threading.Lock()

    def fileno(self) -> int:
        fd = self._fd
        if fd < 0:  # the kernel must not see it: another file could have the number by then
            raise FileClosed(f"{self.path} was closed here")
        return fd

    def size(self) -> int:
        return os.fstat(self.fileno()).st_size

    def pread(self, length: int, position: int) -> bytes:
        fd = self._fd
        if fd < 0:
            raise FileClosed(f"{self.path} was closed here")
        data = os.pread(fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]  # the kernel gives at most 2 GiB at once, and may give less after a signal
        got = len(data)
        while got < length and (data := os.pread(fd, length - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pread_cached(self, length: int, position: int) -> Buffer:
        fd = self.fileno()
        data = bytearray(length)
        try:
            got = os.preadv(fd, (data,), position, os.RWF_NOWAIT)
        except BlockingIOError:
            got = 0
        except OSError as error:
            if error.errno not in NO_ANSWER:
                raise
            return self.pread(length, position)
        if got != length:
            raise WouldWait(f"{self.path}: {length} bytes at {position} are not in the page cache")
        return data

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        fd = self.fileno()
        total = sum(map(len, buffers))
        if total > PIECE_BYTES:
            for buffer in buffers:
                _write_in_pieces(fd, memoryview(buffer), position)
                position += len(buffer)
            return total
        written = os.pwritev(fd, buffers, position)
        if written != total:
            _write_in_pieces(fd, memoryview(b"".join(buffers))[written:], position + written)
        return total

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fileno(), size)

    def reserve(self, position: int, length: int) -> None:
        _fallocate(self.fileno(), _KEEP_SIZE, position, length)  # a full disk shows at the write

    def forget(self, position: int, length: int) -> None:
        os.posix_fadvise(self.fileno(), position, length, os.POSIX_FADV_DONTNEED)

    def fdatasync(self) -> None:
        os.fdatasync(self.fileno())

    def acquire(self) -> bool:
        with self._lock:
            if self._holders == 0:
                return False
            self._holders += 1
            return True

    def release(self) -> None:
        with self._lock:
            if self._holders == self._is_owned:
                raise ValueError(f"{self.path} was released more often than acquired")
            self._holders -= 1
            if self._holders == 0:
                self._end()

    def close(self) -> None:
        with self._lock:
            if self._is_owned:
                self._is_owned = False
                self._holders -= 1
                if self._holders == 0:
                    self._end()

    def _end(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)


def _write_in_pieces(fd: int, data: memoryview, position: int) -> None:
    done = 0
    while done < len(data):  # the kernel may take less than it is given
        done += os.pwrite(fd, data[done : done + PIECE_BYTES], position + done)


class _Flock:
    """A flock: it survives other descriptors of the file being closed, as lockf does not."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    def is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealFileSystem:
    """The operating system's files."""

    def open(self, path: Path, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(path, os.open(path, flags, 0o644))

    def exists(self, path: Path) -> bool:
        return os.path.exists(path)

    def list_dir(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def make_dirs(self, path: Path) -> None:
        if path.is_dir():
            return
        self.make_dirs(path.parent)
        os.mkdir(path, 0o700)
        self.fsync_dir(path.parent)

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def remove_dir(self, path: Path) -> None:
        os.rmdir(path)

    def fsync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: Path) -> FileLock | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return _Flock(fd, path)

    def space(self, path: Path) -> Space:
        at = os.statvfs(path)
        return Space(at.f_frsize * at.f_blocks, at.f_frsize * at.f_bavail)


def read_bytes(fs: FileSystem, path: Path) -> bytes | None:
    """A small file's content; None when there is none."""
    try:
        file = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def write_atomically(fs: FileSystem, path: Path, data: bytes) -> None:
    """Replace a small file: after a crash at any moment it holds the old content or the new, never a mix."""
    temporary = path.with_name(path.name + ".tmp")
    file = fs.open(temporary, create=True)
    try:
        file.truncate(0)
        file.pwritev((data,), 0)
        file.fdatasync()
    finally:
        file.close()
    fs.rename(temporary, path)
    fs.fsync_dir(path.parent)


def remove_file(fs: FileSystem, path: Path) -> None:
    """Delete a file. One that is not there is what was wanted, and no failure of the disk."""
    try:
        fs.unlink(path)
    except FileNotFoundError:
        pass


def remove_tree(fs: FileSystem, path: Path) -> None:
    """Delete a directory of plain files; what a crash leaves is a directory with fewer of them."""
    for name in fs.list_dir(path):
        remove_file(fs, path / name)
    fs.remove_dir(path)
    fs.fsync_dir(path.parent)
