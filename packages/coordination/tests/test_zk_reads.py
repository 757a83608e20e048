"""Many reads in one request, without a server: how many requests, and what they say."""

from __future__ import annotations

import struct
from typing import Any

from raylog.coordination.store.port import MAX_WRITE_BYTES, StoreUnauthorized
from raylog.coordination.zookeeper.reads import ManyReads

STAT = struct.pack(">qqqqiiiqiiq", 1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13)
"""Of a node at version 7."""
END = struct.pack(">i?i", -1, True, -1)
NO_NODE, NO_AUTH = -101, -102


def data_of(path: str) -> bytes:
    return struct.pack(">i?i", 4, False, 0) + struct.pack(">i", len(path)) + path.encode() + STAT


def children(*names: str) -> bytes:
    listed = b"".join(struct.pack(">i", len(name)) + name.encode() for name in names)
    return struct.pack(">i?i", 8, False, 0) + struct.pack(">i", len(names)) + listed


def error(code: int) -> bytes:
    return struct.pack(">i?i", -1, False, code) + struct.pack(">i", code)


class Server:
    """Answers each request as it is asked for the answer; a node's data is its path."""

    def __init__(self, **odd: bytes) -> None:
        self.odd = odd
        """What is answered about nodes, by name."""
        self.requests: list[bytes] = []
        self.most_under_way = self._under_way = 0
        self.reads = ManyReads(lambda path: f"/root{path}", self._begin, self._answer)

    def _begin(self, path: str, request: Any) -> tuple[Any, bytes]:
        asked = bytes(request.serialize())
        self.requests.append(asked)
        self._under_way += 1
        self.most_under_way = max(self.most_under_way, self._under_way)
        return request, asked

    def _answer(self, path: str, result: tuple[Any, bytes]) -> Any:
        self._under_way -= 1
        request, asked = result
        paths = [part.split(b"\0")[0].decode() for part in asked.split(b"/root")[1:]]
        answers = (self.odd.get(path.removeprefix("/")) or data_of(path) for path in paths)
        return request.deserialize(b"reply" + b"".join((*answers, END)), len(b"reply"))


def test_many_nodes_are_read_by_few_requests() -> None:
    server = Server()
    paths = [f"/n{n}" for n in range(1_250)]
    assert server.reads.get(paths) == [(path.encode(), 7) for path in paths]
    assert (len(server.requests), server.most_under_way) == (13, 5)
    assert server.reads.get([]) == []


def test_request_is_no_larger_than_the_server_takes() -> None:
    server = Server()
    paths = [f"/{n:06}{'x' * 20_000}" for n in range(60)]
    assert len(server.reads.get(paths)) == 60
    assert max(map(len, server.requests)) <= MAX_WRITE_BYTES * 0.6


def test_node_that_is_missing_is_none_and_an_odd_path_is_not_asked_for() -> None:
    server = Server(b=error(NO_NODE))
    assert server.reads.get(["/b", "/a/", "/c", "/b"]) == [None, None, (b"/c", 7), None]
    assert b"/a/" not in b"".join(server.requests)


def test_node_that_is_closed_is_told() -> None:
    server = Server(b=error(NO_AUTH))
    found, closed = server.reads.get(["/a", "/b"])
    assert found == (b"/a", 7)
    assert isinstance(closed, StoreUnauthorized)
    assert closed.path == "/b"


def test_children_are_sorted() -> None:
    server = Server(a=children("z", "m"), b=children(), c=error(NO_NODE))
    assert server.reads.children(["/a", "/b", "/c"]) == [["m", "z"], [], []]
