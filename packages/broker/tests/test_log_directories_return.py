"""A log directory comes back after a time offline, in which a topic was deleted and another one of its name made."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kit.faulty_files import FailingFileSystem
from kit.node import Node
from raylog.broker.storage.disk.files import RealFileSystem
from raylog.protocol.errors import StorageError
from raylog.protocol.ids import Offset, TimestampMs
from raylog.protocol.records import Record, decode_batches, encode_batch


def append(node: Node, value: bytes) -> None:
    node.partition("t").append(memoryview(bytearray(encode_batch([Record(value)]))), now_ms=TimestampMs(0))


def values(node: Node) -> list[bytes | None]:
    data = node.partition("t").read(Offset(0), 1 << 20).data
    assert data is not None
    try:
        return [record.value for record in decode_batches(data.read())]
    finally:
        data.release()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("failing", ["a", "b"])
def test_returned_log_of_deleted_topic_gives_way_to_the_new(tmp_path: Path, failing: str, clean: bool) -> None:
    fs = FailingFileSystem(RealFileSystem())
    with Node(tmp_path, fs=fs, config={"log.dirs": str(tmp_path / failing)}) as node:
        node.create_topic("t")
        append(node, b"old")
        topics = tuple(node.table.state().topics.values())
    both = {"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}"}
    node = Node(tmp_path, fs=fs, config=both, topics=topics)
    fs.fail("pwritev", errno.EIO, f"{failing}/t-0/00000000000000000000.log")
    with pytest.raises(StorageError):
        append(node, b"lost")
    fs.faults.clear()
    node.replace_topic("t")
    append(node, b"new")
    assert node.partition("t").log.directory.parent.name != failing
    topics = tuple(node.table.state().topics.values())
    if clean:
        node.__exit__(None, None, None)
    else:
        node.partition("t").flush()
        node.groups.stop()
        node.ports.log_dirs.abandon()
    with Node(tmp_path, config=both, topics=topics) as again:
        assert values(again) == [b"new"]
        assert not again.ports.log_dirs.lost_data
        [old] = (tmp_path / failing).glob("t-0.*-stray")
        assert b"old" in (old / "00000000000000000000.log").read_bytes()
