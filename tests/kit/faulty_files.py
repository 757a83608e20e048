"""File systems that misbehave: the fault-injecting implementations of the broker's FileSystem port.

:class:`LossyFileSystem` lives in memory and models a disk behind a page cache: writes are volatile until fdatasync,
names until fsync_dir. It can crash after (or in the middle of) any operation and then be looked at as the next process
would find it. :class:`FailingFileSystem` wraps any other and answers chosen operations with an errno.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from raylog.broker.storage.disk.files import (
    Buffer,
    File,
    FileClosed,
    FileLock,
    FileSystem,
    Space,
    WouldWait,
)


class SimulatedCrash(BaseException):
    """The process died here. Not an Exception: nothing may handle it."""


class Loss(Enum):
    """What a crash does to what was not synced."""

    KEPT = "kept"  # the process was killed; the page cache lives on
    LOST = "lost"  # the power failed; only what was synced is there
    MIXED = "mixed"  # the power failed while the kernel was writing back: any part may be there


class _Inode:
    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.synced = bytes(data)


class _Dir:
    def __init__(self) -> None:
        self.entries: dict[str, _Inode | _Dir] = {}
        self.versions: list[dict[str, _Inode | _Dir]] = [{}]
        """The names as last synced, and after each change since."""

    def changed(self) -> None:
        self.versions.append(dict(self.entries))

    def sync(self) -> None:
        self.versions = [dict(self.entries)]


def _oserror(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))


class LossyFileSystem:
    """See the module. Set :attr:`crash_at` to the number of the operation that is the last."""

    def __init__(self) -> None:
        self.operations = 0
        self.crash_at: int | None = None
        self.tear: random.Random | None = None
        """With it, a write that is the last operation gets only a part of its bytes in."""
        self.crashed = False
        self._root = _Dir()
        self._locked: set[Path] = set()

    # --- crashing --------------------------------------------------------------------------------------------

    def crash_after(self, operations: int, tear: random.Random | None = None) -> None:
        """Crash after so many more operations that change something."""
        self.crash_at = self.operations + operations
        self.tear = tear

    def is_last(self) -> bool:
        """Whether the next operation is the one that crashes."""
        return self.crash_at is not None and self.operations + 1 >= self.crash_at

    def check(self) -> None:
        """Nothing works after the crash."""
        if self.crashed:
            raise SimulatedCrash

    def step(self) -> None:
        """Count an operation that changed something, and crash after it when it was the last."""
        self.operations += 1
        if self.crash_at is not None and self.operations >= self.crash_at:
            self.crashed = True
            raise SimulatedCrash

    def after_crash(self, loss: Loss, rng: random.Random) -> LossyFileSystem:
        """What the next process finds; this one is dead from now on."""
        self.crashed = True
        survivor = LossyFileSystem()
        survivor._root = self._root if loss is Loss.KEPT else _survive(self._root, loss, rng)
        return survivor

    # --- the port --------------------------------------------------------------------------------------------

    def _dir(self, path: Path) -> _Dir:
        node: _Dir | _Inode = self._root
        for part in path.parts[1:]:
            if not isinstance(node, _Dir) or part not in node.entries:
                raise _oserror(errno.ENOENT, path)
            node = node.entries[part]
        if not isinstance(node, _Dir):
            raise _oserror(errno.ENOTDIR, path)
        return node

    def open(self, path: Path, *, create: bool = False) -> File:
        self.check()
        parent = self._dir(path.parent)
        node = parent.entries.get(path.name)
        if node is None:
            if not create:
                raise _oserror(errno.ENOENT, path)
            node = parent.entries[path.name] = _Inode()
            parent.changed()
            self.step()
        if isinstance(node, _Dir):
            raise _oserror(errno.EISDIR, path)
        return LossyFile(self, path, node)

    def exists(self, path: Path) -> bool:
        self.check()
        try:
            return path.name in self._dir(path.parent).entries
        except FileNotFoundError:
            return False

    def list_dir(self, path: Path) -> list[str]:
        self.check()
        return sorted(self._dir(path).entries)

    def make_dirs(self, path: Path) -> None:
        self.check()
        node = self._root
        for part in path.parts[1:]:
            if part not in node.entries:
                node.entries[part] = _Dir()
                node.sync()
                self.step()
            child = node.entries[part]
            if not isinstance(child, _Dir):
                raise _oserror(errno.ENOTDIR, path)
            node = child

    def rename(self, old: Path, new: Path) -> None:
        self.check()
        source, target = self._dir(old.parent), self._dir(new.parent)
        if old.name not in source.entries:
            raise _oserror(errno.ENOENT, old)
        target.entries[new.name] = source.entries.pop(old.name)
        source.changed()
        if target is not source:
            target.changed()
        self.step()

    def unlink(self, path: Path) -> None:
        self.check()
        parent = self._dir(path.parent)
        if not isinstance(parent.entries.get(path.name), _Inode):
            raise _oserror(errno.ENOENT, path)
        del parent.entries[path.name]
        parent.changed()
        self.step()

    def remove_dir(self, path: Path) -> None:
        self.check()
        if self._dir(path).entries:
            raise _oserror(errno.ENOTEMPTY, path)
        parent = self._dir(path.parent)
        del parent.entries[path.name]
        parent.changed()
        self.step()

    def fsync_dir(self, path: Path) -> None:
        self.check()
        self._dir(path).sync()
        self.step()

    def lock(self, path: Path) -> FileLock | None:
        if path in self._locked:
            return None
        self.open(path, create=True).close()
        self._locked.add(path)
        return _MemoryLock(self._locked, path)

    def space(self, path: Path) -> Space:
        self.check()
        used = sum(len(data) for data in _contents(self._root))
        return Space(_DISK_BYTES, _DISK_BYTES - used)


_DISK_BYTES = 1 << 30


def _contents(directory: _Dir) -> Iterator[bytearray]:
    for node in directory.entries.values():
        if isinstance(node, _Dir):
            yield from _contents(node)
        else:
            yield node.data


class _MemoryLock:
    def __init__(self, locked: set[Path], path: Path) -> None:
        self._locked, self._path = locked, path

    def is_in_place(self) -> bool:
        return self._path in self._locked

    def release(self) -> None:
        self._locked.discard(self._path)


def _survive(directory: _Dir, loss: Loss, rng: random.Random) -> _Dir:
    entries = directory.versions[0] if loss is Loss.LOST else rng.choice(directory.versions)
    copy = _Dir()
    for name, node in entries.items():
        copy.entries[name] = (
            _survive(node, loss, rng) if isinstance(node, _Dir) else _Inode(_surviving_data(node, loss, rng))
        )
    copy.sync()
    return copy


_BLOCK = 64


def _surviving_data(inode: _Inode, loss: Loss, rng: random.Random) -> bytes:
    new, old = bytes(inode.data), inode.synced
    if new == old:
        return new
    if loss is Loss.LOST:
        return old
    size = rng.choice((len(old), len(new), rng.randint(min(len(old), len(new)), max(len(old), len(new)))))
    old, new = old.ljust(size, b"\0")[:size], new.ljust(size, b"\0")[:size]
    blocks = range(0, size, _BLOCK)
    return b"".join(rng.choice((old, new))[start : start + _BLOCK] for start in blocks)


class LossyFile:
    """An open file of a LossyFileSystem."""

    def __init__(self, fs: LossyFileSystem, path: Path, inode: _Inode) -> None:
        self.path = path
        self._fs = fs
        self._inode = inode
        self._holders = 1
        self._is_owned = True

    def _check(self) -> None:
        self._fs.check()
        if self._holders == 0:
            raise FileClosed(f"{self.path} was closed")

    def fileno(self) -> int:
        raise _oserror(errno.EBADF, self.path)

    def size(self) -> int:
        self._check()
        return len(self._inode.data)

    def pread(self, length: int, position: int) -> bytes:
        self._check()
        return bytes(self._inode.data[position : position + length])

    def pread_cached(self, length: int, position: int) -> Buffer:
        return self.pread(length, position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        self._check()
        written = data = b"".join(buffers)
        if self._fs.tear is not None and self._fs.is_last():
            written = data[: self._fs.tear.randint(0, len(data))]
        content = self._inode.data
        if len(content) < position:
            content.extend(bytes(position - len(content)))
        content[position : position + len(written)] = written
        self._fs.step()
        return len(data)

    def truncate(self, size: int) -> None:
        self._check()
        content = self._inode.data
        del content[size:]
        content.extend(bytes(size - len(content)))
        self._fs.step()

    def reserve(self, position: int, length: int) -> None:
        self._check()

    def forget(self, position: int, length: int) -> None:
        self._check()

    def fdatasync(self) -> None:
        self._check()
        self._inode.synced = bytes(self._inode.data)
        self._fs.step()

    def acquire(self) -> bool:
        if self._holders == 0:
            return False
        self._holders += 1
        return True

    def release(self) -> None:
        if self._holders == self._is_owned:
            raise ValueError(f"{self.path} was released more often than acquired")
        self._holders -= 1

    def close(self) -> None:
        self._holders -= self._is_owned
        self._is_owned = False


@dataclass
class Fault:
    """A rule: operations called ``operation`` on paths that end with ``suffix`` fail."""

    operation: str
    code: int
    suffix: str = ""
    after_bytes: int | None = None  # for pwritev: so many bytes get in first, as on a full disk


class FailingFileSystem:
    """Another file system with faults. :attr:`calls` counts operations by name, failed ones included."""

    def __init__(self, inner: FileSystem) -> None:
        self.faults: list[Fault] = []
        self.calls: Counter[str] = Counter()
        self.is_cached = True
        """Whether the page cache has what lies in its files."""
        self._inner = inner

    def fail(self, operation: str, code: int, suffix: str = "", after_bytes: int | None = None) -> Fault:
        """Add a fault; take it out of :attr:`faults` to heal."""
        fault = Fault(operation, code, suffix, after_bytes)
        self.faults.append(fault)
        return fault

    def meet(self, operation: str, path: Path) -> Fault | None:
        """Count the operation; raises OSError when a fault says so, but answers one that lets a part through."""
        self.calls[operation] += 1
        for fault in self.faults:
            if fault.operation == operation and str(path).endswith(fault.suffix):
                if fault.after_bytes is not None:
                    return fault
                raise _oserror(fault.code, path)
        return None

    def open(self, path: Path, *, create: bool = False) -> File:
        self.meet("open", path)
        return FailingFile(self, self._inner.open(path, create=create))

    def exists(self, path: Path) -> bool:
        return self._inner.exists(path)

    def list_dir(self, path: Path) -> list[str]:
        self.meet("list_dir", path)
        return self._inner.list_dir(path)

    def make_dirs(self, path: Path) -> None:
        self.meet("make_dirs", path)
        self._inner.make_dirs(path)

    def rename(self, old: Path, new: Path) -> None:
        self.meet("rename", new)
        self._inner.rename(old, new)

    def unlink(self, path: Path) -> None:
        self.meet("unlink", path)
        self._inner.unlink(path)

    def remove_dir(self, path: Path) -> None:
        self.meet("remove_dir", path)
        self._inner.remove_dir(path)

    def fsync_dir(self, path: Path) -> None:
        self.meet("fsync_dir", path)
        self._inner.fsync_dir(path)

    def lock(self, path: Path) -> FileLock | None:
        self.meet("lock", path)
        return self._inner.lock(path)

    def space(self, path: Path) -> Space:
        self.meet("space", path)
        return self._inner.space(path)


class FailingFile:
    """An open file of a FailingFileSystem."""

    def __init__(self, fs: FailingFileSystem, inner: File) -> None:
        self.path = inner.path
        self._fs = fs
        self._inner = inner

    def fileno(self) -> int:
        return self._inner.fileno()

    def size(self) -> int:
        return self._inner.size()

    def pread(self, length: int, position: int) -> bytes:
        self._fs.meet("pread", self.path)
        return self._inner.pread(length, position)

    def pread_cached(self, length: int, position: int) -> Buffer:
        self._fs.meet("pread_cached", self.path)
        if not self._fs.is_cached:
            raise WouldWait(f"{self.path} is not cached")
        return self._inner.pread_cached(length, position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        fault = self._fs.meet("pwritev", self.path)
        if fault is not None:
            self._inner.pwritev((b"".join(buffers)[: fault.after_bytes],), position)
            raise _oserror(fault.code, self.path)
        return self._inner.pwritev(buffers, position)

    def truncate(self, size: int) -> None:
        self._fs.meet("truncate", self.path)
        self._inner.truncate(size)

    def reserve(self, position: int, length: int) -> None:
        self._inner.reserve(position, length)

    def forget(self, position: int, length: int) -> None:
        self._inner.forget(position, length)

    def fdatasync(self) -> None:
        self._fs.meet("fdatasync", self.path)
        self._inner.fdatasync()

    def acquire(self) -> bool:
        return self._inner.acquire()

    def release(self) -> None:
        self._inner.release()

    def close(self) -> None:
        self._inner.close()
