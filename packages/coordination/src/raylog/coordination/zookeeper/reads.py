"""Many reads in one request (ZooKeeper 3.6 and newer), which kazoo has no call for.

A request of its own costs kazoo a quarter of a millisecond of processor time, one of a hundred in a request a few
microseconds. The server refuses the request as a whole where it is older.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from kazoo.exceptions import EXCEPTIONS, KazooException, NoNodeError
from kazoo.protocol.serialization import Exists, GetChildren, GetData

from raylog.coordination.store.port import MAX_WRITE_BYTES, StoreUnauthorized, Versioned, is_path, packed
from raylog.coordination.zookeeper.errors import translated

__all__ = ["ManyReads"]

_AT_ONCE = 500
"""How many nodes are asked for at once, at the most."""
_IN_ONE = 100
"""How many of them in one request: the answer to one takes memory in the server."""

_HEADER = struct.Struct(">i?i")
"""Of each operation: its type, whether it is the end, an error."""
_INT = struct.Struct(">i")
_VERSION_OF_STAT = struct.Struct(">32xi32x")
"""A stat's version of the data, among its 68 bytes."""
_END = _HEADER.pack(-1, True, -1)

Answer = Any
"""What was read, None where there is no such node, or the KazooException that the read met."""


class ManyReads:
    """Reads of many nodes, each at its own moment. Where no node can have a path, there is none; where one may not be
    read, its answer is the error.
    """

    def __init__(
        self, at: Callable[[str], str], begin: Callable[[str, Any], Any], answer: Callable[[str, Any], Any]
    ) -> None:
        """``at``: a path with the chroot. ``begin`` a request, told by a path, and wait for its ``answer``."""
        self._at = at
        self._begin = begin
        self._answer = answer

    def get(self, paths: Sequence[str]) -> list[Versioned | StoreUnauthorized | None]:
        """The nodes' data and versions; None: there is no such node."""
        return self._read(paths, _ReadData)

    def children(self, paths: Sequence[str]) -> list[list[str] | StoreUnauthorized]:
        """The names of the nodes' children, sorted."""
        found = self._read(paths, _ReadChildren)
        return [names if isinstance(names, StoreUnauthorized) else sorted(names or ()) for names in found]

    def exists(self, paths: Sequence[str]) -> list[Any]:
        """The nodes' stats; None: there is no such node."""
        asked = [path for path in paths if is_path(path)]
        stats = self._ask([(path, Exists(self._at(path), None)) for path in asked], _AT_ONCE)
        found = dict(zip(asked, stats, strict=True))
        return [found.get(path) for path in paths]

    def _read(self, paths: Sequence[str], kind: type[_ReadMany]) -> list[Answer]:
        asked = filter(is_path, paths)
        parts = list(packed(asked, lambda path: len(path.encode()), MAX_WRITE_BYTES // 2, _IN_ONE))
        requests = [(part[0], kind([*map(self._at, part)])) for part in parts]
        found: dict[str, Answer] = {}
        for part, answers in zip(parts, self._ask(requests, _AT_ONCE // _IN_ONE), strict=True):
            for path, answer in zip(part, answers, strict=True):
                found[path] = _or_closed(answer, path)
        return [found.get(path) for path in paths]

    def _ask(self, requests: Sequence[tuple[str, Any]], at_once: int) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(requests), at_once):
            batch = requests[start : start + at_once]
            results = [self._begin(path, request) for path, request in batch]
            answers += [self._answer(path, result) for (path, _), result in zip(batch, results, strict=True)]
        return answers


def _or_closed(answer: Answer, path: str) -> Answer:
    if not isinstance(answer, KazooException):
        return answer
    error = translated(answer, path)
    if isinstance(error, StoreUnauthorized):
        return error
    raise error from answer


class _ReadMany:
    """A request as kazoo's connection knows them. ``paths`` have the chroot."""

    type: ClassVar[int] = 22
    operation: ClassVar[int]

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def serialize(self) -> bytes:
        parts = []
        for path in self._paths:
            encoded = path.encode()
            parts += [_HEADER.pack(self.operation, False, -1), _INT.pack(len(encoded)), encoded, b"\0"]  # no watch
        return b"".join((*parts, _END))

    def deserialize(self, buffer: bytes, offset: int) -> list[Answer]:
        """In the order asked."""
        found: list[Answer] = []
        while True:
            kind, is_end, _ = _HEADER.unpack_from(buffer, offset)
            offset += _HEADER.size
            if is_end:
                return found
            if kind == self.operation:
                answer, offset = self._read(buffer, offset)
            else:
                answer, offset = _error(buffer, offset)
            found.append(answer)

    @staticmethod
    def _read(buffer: bytes, offset: int) -> tuple[Answer, int]:
        raise NotImplementedError


class _ReadData(_ReadMany):
    """The data and versions of nodes."""

    operation = GetData.type

    @staticmethod
    def _read(buffer: bytes, offset: int) -> tuple[Versioned, int]:
        data, offset = _bytes(buffer, offset)
        [version] = _VERSION_OF_STAT.unpack_from(buffer, offset)
        return Versioned(data, version), offset + _VERSION_OF_STAT.size


class _ReadChildren(_ReadMany):
    """The names of nodes' children."""

    operation = GetChildren.type

    @staticmethod
    def _read(buffer: bytes, offset: int) -> tuple[list[str], int]:
        [count] = _INT.unpack_from(buffer, offset)
        offset += _INT.size
        names = []
        for _ in range(count):
            name, offset = _bytes(buffer, offset)
            names.append(name.decode())
        return names, offset


def _bytes(buffer: bytes, offset: int) -> tuple[bytes, int]:
    """Bytes after their count, which is -1 for a node that has none."""
    [size] = _INT.unpack_from(buffer, offset)
    start = offset + _INT.size
    end = start + max(size, 0)
    return bytes(buffer[start:end]), end


def _error(buffer: bytes, offset: int) -> tuple[KazooException | None, int]:
    [code] = _INT.unpack_from(buffer, offset)
    error = EXCEPTIONS[code]()
    return None if isinstance(error, NoNodeError) else error, offset + _INT.size
