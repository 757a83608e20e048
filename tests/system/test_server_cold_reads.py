"""Fetches of what is not in the page cache: a thread of their own reads it, and the loop serves all others."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kit.machine import scaled
from kit.node import Node
from kit.page_cache import is_dropped
from kit.slow_files import StuckDisk
from kit.waiting import wait_until
from kit.wire import WireClient, fetch_request, produce_request
from raylog.broker.storage.disk.files import RealFileSystem, WouldWait
from raylog.protocol.records import Record, decode_batches, encode_batch
from raylog.protocol.wire.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, parse_fetch_response
from raylog.protocol.wire.primitives import ZERO_UUID
from raylog.protocol.wire.produce import parse_produce_response

WAIT_S = 10.0
VERSION = 12
NO_SESSION = -1


def batch(value: bytes) -> bytes:
    return encode_batch([Record(value)])


def fetch(
    offset: int = 0, *, max_wait_ms: int = 0, min_bytes: int = 1, session: tuple[int, int] = (0, NO_SESSION)
) -> FetchRequest:
    session_id, epoch = session
    topics = [FetchTopic("t", ZERO_UUID, [FetchPartition(0, offset, 1 << 20)])]
    return FetchRequest(max_wait_ms, min_bytes, topics, session_id=session_id, session_epoch=epoch)


def values(response: FetchResponse[memoryview]) -> list[bytes | None]:
    records = response.topics[0].partitions[0].records
    return [record.value for record in decode_batches(records or b"")]


@pytest.fixture
def disk() -> StuckDisk:
    return StuckDisk(RealFileSystem())


@pytest.fixture
def node(tmp_path: Path, disk: StuckDisk) -> Iterator[Node]:
    with Node(tmp_path, fs=disk) as node:
        node.create_topic("t")
        yield node
        disk.gate.set()


def served_at_once(node: Node, other: WireClient) -> None:
    """Another client's requests, and that the loop's thread is still the first one."""
    for _ in range(100):
        assert other.produce("other", batch(b"x")).topics[0].partitions[0].error_code == 0
    assert node.server is not None
    assert node.server._loop is not None
    assert not node.server._loop._generation, "the loop waited, and another thread took over"


@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize("max_wait_ms", [0, 30_000])
def test_cold_fetch_keeps_no_other_client(node: Node, disk: StuckDisk, max_wait_ms: int, session: bool) -> None:
    node.create_topic("other")
    address = node.serve()
    with WireClient(address, timeout_s=60) as reader, WireClient(address) as other:
        reader.produce("t", batch(b"here"))
        asked = fetch(max_wait_ms=max_wait_ms)
        if session:
            begun = reader.fetch(VERSION, fetch(1, session=(0, 0)))
            reader.fetch(VERSION, fetch(1, session=(begun.session_id, 1)))
            asked = fetch(max_wait_ms=max_wait_ms, session=(begun.session_id, 2))
        disk.stick("pread")
        reader.send(fetch_request(VERSION, asked, correlation_id=1))
        assert disk.met.wait(scaled(WAIT_S))
        served_at_once(node, other)
        disk.gate.set()
        correlation_id, response = parse_fetch_response(VERSION, reader.receive())
        assert (correlation_id, values(response)) == (1, [b"here"])
        if session:
            following = reader.fetch(VERSION, fetch(1, session=(begun.session_id, 3)))
            assert following.error_code == 0, "the session has gone on"


def test_long_poll_that_is_woken_reads_the_disk_elsewhere(node: Node, disk: StuckDisk) -> None:
    node.create_topic("other")
    address = node.serve()
    with WireClient(address, timeout_s=60) as reader, WireClient(address) as other:
        reader.send(fetch_request(VERSION, fetch(max_wait_ms=60_000, min_bytes=100), correlation_id=1))
        wait_until(lambda: len(node.delayed) == 1, WAIT_S, "it waits")
        disk.stick("pread")
        for _ in range(3):
            other.produce("t", batch(b"fresh"))
        assert disk.met.wait(scaled(WAIT_S))
        served_at_once(node, other)
        disk.gate.set()
        _, response = parse_fetch_response(VERSION, reader.receive())
        assert values(response)[:2] == [b"fresh"] * 2


def test_requests_behind_a_cold_fetch_keep_their_order(node: Node, disk: StuckDisk) -> None:
    node.create_topic("other")
    with WireClient(node.serve(), timeout_s=60) as client:
        client.produce("t", batch(b"here"))
        disk.stick("pread")
        for number in range(0, 30, 3):
            client.send(fetch_request(VERSION, fetch(), correlation_id=number))
            client.send(produce_request("other", batch(b"x"), correlation_id=number + 1))
            client.send(fetch_request(VERSION, fetch(), correlation_id=number + 2))
        assert disk.met.wait(scaled(WAIT_S))
        disk.gate.set()
        for number in range(30):
            reply = client.receive()
            assert struct.unpack(">i", reply[:4])[0] == number
            if number % 3 == 1:
                assert parse_produce_response(9, reply)[1].topics[0].partitions[0].error_code == 0
            else:
                assert values(parse_fetch_response(VERSION, reply)[1]) == [b"here"]


@pytest.mark.parametrize("is_checked", [False, True])
def test_first_read_after_a_start_is_elsewhere(tmp_path: Path, disk: StuckDisk, is_checked: bool) -> None:
    """Indexes are not loaded then, and batches are not checked; the page cache has all of it."""
    config = {"segment.bytes": "1000"}
    with Node(tmp_path) as before:
        topic = before.create_topic("t", config=config)
        with WireClient(before.serve()) as client:
            for number in range(50):
                client.produce("t", batch(b"%d" % number))
    with Node(tmp_path, fs=disk, topics=[topic]) as node:
        node.create_topic("t", config=config)
        node.create_topic("other")
        address = node.serve()
        with WireClient(address, timeout_s=60) as reader, WireClient(address) as other:
            if is_checked:
                assert values(reader.fetch(VERSION, fetch()))[0] == b"0"
            disk.stick("pread")
            disk.is_cached = True
            reader.send(fetch_request(VERSION, fetch(), correlation_id=1))
            assert disk.met.wait(0 if is_checked else scaled(WAIT_S)) != is_checked, "it is checked once"
            served_at_once(node, other)
            disk.gate.set()
            assert values(parse_fetch_response(VERSION, reader.receive())[1])[0] == b"0"


@pytest.mark.parametrize("how", ["reset", "close", "stop"])
def test_end_of_a_client_whose_fetch_reads_leaves_nothing(node: Node, disk: StuckDisk, how: str) -> None:
    address = node.serve()
    server = node.server
    assert server is not None
    with WireClient(address, timeout_s=60) as reader:
        reader.produce("t", batch(b"here"))
        begun = reader.fetch(VERSION, fetch(1, session=(0, 0)))
        disk.stick("pread")
        reader.send(fetch_request(VERSION, fetch(session=(begun.session_id, 1)), correlation_id=1))
        assert disk.met.wait(scaled(WAIT_S))
        if how == "reset":
            reader.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "stop":
            server.stop(timeout=0.3)
        else:
            reader.sock.close()
        disk.gate.set()
        wait_until(lambda: not server.connection_count, WAIT_S, "it has ended")
    assert server._memory.used == 0
    assert not any(node.loops.failures().values()), node.loops.failures()
    [segment] = node.partition("t").log.segments
    assert segment._file._inner._holders == 1, "its hold on the file was given back"  # type: ignore[attr-defined]


def test_followers_throttle_counts_what_is_sent(node: Node, disk: StuckDisk) -> None:
    """A fetch that reads twice, as it waited for the disk or for more, counts once."""
    config = {"leader.replication.throttled.replicas": "*"}
    node.create_topic("t", replicas=(1, 2), isr=(1,), config=config)
    rate = 1_000
    node.broker_configs = {"1": {"leader.replication.throttled.rate": str(rate)}}
    taken: list[int] = []
    quota = node.ports.leader_quota
    quota.take = taken.append  # type: ignore[method-assign]
    with WireClient(node.serve(), timeout_s=60) as follower:
        follower.produce("t", batch(bytes(5_000)))
        part = FetchPartition(0, 0, 1 << 20, current_leader_epoch=0, log_start_offset=0)
        asked = FetchRequest(50, 1 << 20, [FetchTopic("t", ZERO_UUID, [part])], replica_id=2, replica_epoch=1)
        response = follower.fetch(VERSION, asked)
        sent = response.topics[0].partitions[0].records
        assert sent is not None
        assert sum(taken) == len(sent)


def test_read_of_cached_bytes_never_waits(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(os.urandom(1 << 20))
    file = RealFileSystem().open(path)
    with closing(file):
        assert file.pread_cached(1_000, 5) == file.pread(1_000, 5)
        with pytest.raises(WouldWait):
            file.pread_cached(1_000, (1 << 20) - 999)
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
        wait_until(lambda: is_dropped(file), WAIT_S, "the page cache drops the file")
        file.pread(1, 0)
        with pytest.raises(WouldWait):
            file.pread_cached(8_192, 0)
