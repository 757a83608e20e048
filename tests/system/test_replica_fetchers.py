"""A follower whose leader is the test, over a socket: what it asks for, and what it makes of every kind of answer."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.machine import scaled
from kit.node import BROKER, LISTENER, Node
from kit.slow_files import StartWrites
from kit.waiting import wait_until
from raylog.broker.config import BROKER_SETTINGS
from raylog.broker.partition.partition import Partition
from raylog.broker.replicas.fetchers import ReplicaFetchers
from raylog.broker.replicas.leader_connection import FETCH_VERSION
from raylog.broker.storage.disk.files import RealFileSystem
from raylog.broker.storage.log.cleaning import delete_records
from raylog.coordination.host.clocks import monotonic_ms
from raylog.coordination.metadata.model import BrokerInfo, Endpoint
from raylog.protocol.errors import ErrorCode
from raylog.protocol.ids import BrokerEpoch, BrokerId, LeaderEpoch, MonotonicMs, Offset, TopicName
from raylog.protocol.records import Record, encode_batch
from raylog.protocol.wire.fetch import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    encode_fetch_response,
    parse_fetch_request,
)
from raylog.protocol.wire.messages import parse_request_header

LEADER = 2
WAIT_S = 10.0
SESSION = 77


class FakeLeader:
    """Takes fetches in, and answers them when the test says so."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        host, port = self._server.getsockname()
        self.info = BrokerInfo(BrokerId(LEADER), BrokerEpoch(3), (Endpoint(LISTENER, host, port),))
        self._requests: queue.SimpleQueue[tuple[socket.socket, int, FetchRequest]] = queue.SimpleQueue()
        self._sockets: list[socket.socket] = []
        self._asked: tuple[socket.socket, int] | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.hang_up()

    def hang_up(self) -> None:
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._sockets.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._server.accept()
                self._sockets.append(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), sock.makefile("rb") as stream:
            while length := stream.read(4):
                frame = memoryview(bytearray(stream.read(*struct.unpack(">i", length))))
                _, version, correlation_id, _, body = parse_request_header(frame)
                assert version == FETCH_VERSION
                self._requests.put((sock, correlation_id, parse_fetch_request(version, frame[body:])))

    def next_request(self) -> FetchRequest:
        sock, correlation_id, request = self._requests.get(timeout=scaled(WAIT_S))
        self._asked = (sock, correlation_id)
        return request

    def answer(self, node: Node, *found: FetchedPartition[bytes], error: ErrorCode = ErrorCode.none) -> None:
        """To the request taken last."""
        assert self._asked is not None
        sock, correlation_id = self._asked
        topic = node.table.state().topics[TopicName("t")]
        topics = [FetchedTopic("", topic.id, found)] if found else []
        response = FetchResponse(topics, error_code=error.value, session_id=0 if error.value else SESSION)
        data = b"".join(encode_fetch_response(FETCH_VERSION, correlation_id, response))
        sock.sendall(struct.pack(">i", len(data)) + data)


def asked(request: FetchRequest) -> dict[int, FetchPartition]:
    return {part.partition: part for topic in request.topics for part in topic.partitions}


def batch(offset: int, value: bytes, epoch: int = 1) -> bytes:
    return encode_batch([Record(value)], base_offset=offset, leader_epoch=epoch)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """It follows both partitions of ``t``; whom it follows is not told yet."""
    with Node(tmp_path) as made:
        made.create_topic("t", partitions=2, replicas=(BROKER, LEADER), leader=LEADER, leader_epoch=1)
        yield made


@pytest.fixture
def partitions(node: Node) -> list[Partition]:
    return [partition for _, partition in sorted(node.table.followed().items())]


@pytest.fixture
def leader() -> Iterator[FakeLeader]:
    made = FakeLeader()
    yield made
    made.close()


class Uptime:
    """A monotonic clock that stands still until the test lets it go on."""

    def __init__(self) -> None:
        self.stopped_ms: MonotonicMs | None = None

    def __call__(self) -> MonotonicMs:
        return monotonic_ms() if self.stopped_ms is None else self.stopped_ms


@pytest.fixture
def uptime() -> Uptime:
    return Uptime()


@pytest.fixture
def fetchers(node: Node, uptime: Uptime) -> Iterator[ReplicaFetchers]:
    made = ReplicaFetchers(node.settings, node.now_ms, node.loops, uptime)
    made.epoch = lambda: BrokerEpoch(5)
    yield made
    made.stop()


def follow(fetchers: ReplicaFetchers, leader: FakeLeader, *partitions: Partition) -> None:
    for partition in partitions:
        fetchers.follow(partition, leader.info, LeaderEpoch(1))


def test_a_new_incarnation_names_everything_again(
    node: Node, partitions: list[Partition], leader: FakeLeader, fetchers: ReplicaFetchers
) -> None:
    """The leader looks at named partitions only, and takes into the ISR whom it knows in the present incarnation."""
    follow(fetchers, leader, partitions[0])
    for named in {0}, set():
        assert asked(leader.next_request()).keys() == named
        leader.answer(node)
    assert leader.next_request().replica_epoch == 5
    fetchers.epoch = lambda: BrokerEpoch(6)
    leader.answer(node)
    again = leader.next_request()
    assert (again.replica_epoch, again.session_epoch, list(asked(again))) == (6, 0, [0])
    leader.answer(node)
    assert leader.next_request().topics == []


def test_it_names_everything_once_and_then_what_changed(
    node: Node, partitions: list[Partition], leader: FakeLeader, fetchers: ReplicaFetchers
) -> None:
    follow(fetchers, leader, partitions[0])
    first = leader.next_request()
    assert (first.replica_id, first.replica_epoch, first.session_epoch) == (BROKER, 5, 0)
    assert asked(first) == {0: FetchPartition(0, 0, 1 << 20, 1, -1, 0)}
    leader.answer(node, FetchedPartition(0, 0, 1, 1, 0, batch(0, b"a") + batch(1, b"b")))
    second = leader.next_request()
    assert (second.session_id, second.session_epoch) == (SESSION, 1)
    assert asked(second) == {0: FetchPartition(0, 2, 1 << 20, 1, 1, 0)}
    assert (partitions[0].log_end_offset, partitions[0].high_watermark) == (2, 1)
    leader.answer(node)
    third = leader.next_request()
    assert (third.session_epoch, third.topics) == (2, [])
    assert fetchers.bytes_in() == {"t": len(batch(0, b"a")) * 2}
    assert fetchers.leader_ends() == {partitions[0].tp: 1}


def test_leader_hears_that_the_log_of_an_idle_follower_begins_later(
    node: Node, partitions: list[Partition], leader: FakeLeader, fetchers: ReplicaFetchers
) -> None:
    """Retention deletes here, too; whoever reads at the leader must not be sent to what is gone (KIP-392)."""
    follow(fetchers, leader, partitions[0])
    leader.next_request()
    leader.answer(node, FetchedPartition(0, 0, 2, 2, 0, batch(0, b"a") + batch(1, b"b")))
    assert asked(leader.next_request())[0].log_start_offset == 0
    delete_records(partitions[0].log, Offset(1))
    fetchers.start_moved(partitions[0].tp)
    leader.answer(node)
    assert asked(leader.next_request())[0].log_start_offset == 1
    leader.answer(node)
    assert leader.next_request().topics == []


def test_moved_starts_of_an_answer_share_one_write(tmp_path: Path, leader: FakeLeader) -> None:
    """The next fetch, of all partitions, waits for these writes."""
    count = 20
    fs = StartWrites(RealFileSystem())
    with Node(tmp_path, fs=fs) as node:
        node.create_topic("t", partitions=count, replicas=(BROKER, LEADER), leader=LEADER, leader_epoch=1)
        fetchers = ReplicaFetchers(node.settings, node.now_ms, node.loops)
        try:
            follow(fetchers, leader, *node.table.followed().values())
            named = set(asked(leader.next_request()))
            while len(named) < count:  # a request was sent before all were followed
                leader.answer(node)
                named |= asked(leader.next_request()).keys()
            records = batch(0, b"a") + batch(1, b"b")
            leader.answer(node, *(FetchedPartition(number, 0, 2, 2, 0, records) for number in range(count)))
            leader.next_request()
            before = fs.count
            leader.answer(node, *(FetchedPartition(number, 0, 2, 2, 1) for number in range(count)))
            told = asked(leader.next_request())
            assert {number: part.log_start_offset for number, part in told.items()} == dict.fromkeys(range(count), 1)
            assert fs.count - before == 1
        finally:
            fetchers.stop()


def test_an_error_of_one_partition_holds_up_no_other(
    node: Node, partitions: list[Partition], leader: FakeLeader, fetchers: ReplicaFetchers, uptime: Uptime
) -> None:
    uptime.stopped_ms = monotonic_ms()
    follow(fetchers, leader, *partitions)
    if set(asked(leader.next_request())) == {0}:  # it was sent before the second one was followed
        leader.answer(node)
        assert set(asked(leader.next_request())) == {1}
    leader.answer(
        node,
        FetchedPartition(0, ErrorCode.not_leader_or_follower.value),
        FetchedPartition(1, 0, 1, 1, 0, batch(0, b"a")),
    )
    request = leader.next_request()
    assert asked(request)[1].fetch_offset == 1
    assert 0 not in asked(request)
    assert [list(topic.partitions) for topic in request.forgotten] == [[0]]
    leader.answer(node)
    assert 0 not in asked(leader.next_request()), "its backoff is not over"
    leader.answer(node)
    uptime.stopped_ms = None

    def comes_back() -> bool:
        request = leader.next_request()
        leader.answer(node)
        return 0 in asked(request)

    wait_until(comes_back, WAIT_S, "the failed partition is asked for again")


def test_an_answer_to_a_request_from_before_it_was_followed_anew_is_dropped(
    node: Node, partitions: list[Partition], leader: FakeLeader, fetchers: ReplicaFetchers
) -> None:
    """Another may have led in between: then what this leader had at the time is not what it has now."""
    follow(fetchers, leader, *partitions)
    leader.next_request()
    fetchers.unfollow(partitions[0].tp)
    node.create_topic("t", partitions=2, replicas=(BROKER, LEADER), leader=LEADER, leader_epoch=4)
    fetchers.follow(partitions[0], leader.info, LeaderEpoch(4))
    leader.answer(node, FetchedPartition(0, 0, 1, 1, 0, batch(0, b"late")))
    again = asked(leader.next_request())[0]
    assert (again.current_leader_epoch, again.fetch_offset) == (4, 0)
    assert partitions[0].log_end_offset == 0


def test_a_lost_connection_and_a_lost_session_begin_anew(
    node: Node, partitions: list[Partition], leader: FakeLeader, fetchers: ReplicaFetchers
) -> None:
    follow(fetchers, leader, partitions[0])
    leader.next_request()
    leader.answer(node)
    assert leader.next_request().session_epoch == 1
    leader.hang_up()
    again = leader.next_request()
    assert (again.session_epoch, set(asked(again))) == (0, {0})
    leader.answer(node)
    assert leader.next_request().session_epoch == 1
    leader.answer(node, error=ErrorCode.fetch_session_id_not_found)
    again = leader.next_request()
    assert (again.session_epoch, set(asked(again))) == (0, {0})


def test_a_damaged_batch_is_not_written_and_is_fetched_again(
    node: Node, partitions: list[Partition], leader: FakeLeader, fetchers: ReplicaFetchers
) -> None:
    follow(fetchers, leader, partitions[0])
    leader.next_request()
    damaged = bytearray(batch(0, b"a"))
    damaged[-1] ^= 1
    leader.answer(node, FetchedPartition(0, 0, 1, 1, 0, bytes(damaged)))
    again = leader.next_request()
    assert asked(again)[0].fetch_offset == 0
    leader.answer(node, FetchedPartition(0, 0, 1, 1, 0, batch(0, b"a")))
    wait_until(lambda: partitions[0].log_end_offset == 1, WAIT_S, "it is written")


def test_who_is_unfollowed_is_left_alone(
    node: Node, partitions: list[Partition], leader: FakeLeader, fetchers: ReplicaFetchers
) -> None:
    follow(fetchers, leader, *partitions)
    leader.next_request()
    fetchers.unfollow(partitions[0].tp)
    fetchers.unfollow(partitions[0].tp)
    leader.answer(node, FetchedPartition(0, 0, 1, 1, 0, batch(0, b"a")))
    leader.next_request()
    assert partitions[0].log_end_offset == 0


def test_a_throttled_replica_is_left_out_until_the_rate_allows(
    node: Node, partitions: list[Partition], leader: FakeLeader, fetchers: ReplicaFetchers
) -> None:
    config = {"follower.replication.throttled.replicas": f"0:{BROKER}"}
    node.create_topic("t", partitions=2, replicas=(BROKER, LEADER), leader=LEADER, leader_epoch=1, config=config)
    rate = {"follower.replication.throttled.rate": "1"}
    fetchers.settings = lambda: BROKER_SETTINGS.settings(rate)
    follow(fetchers, leader, partitions[0])
    leader.next_request()
    fetchers.follow(partitions[1], leader.info, LeaderEpoch(1))
    leader.answer(node, FetchedPartition(0, 0, 9, 9, 0, batch(0, b"a")))
    assert set(asked(leader.next_request())) == {1}
    leader.answer(node)
    for _ in range(3):
        request = leader.next_request()
        assert request.max_wait_ms <= 100, "it looks soon whether it may go on"
        assert 0 not in asked(request), "a byte a second: it has to wait for a minute now"
        leader.answer(node)
    rate.clear()

    def comes_back() -> bool:
        request = leader.next_request()
        leader.answer(node)
        return 0 in asked(request)

    wait_until(comes_back, WAIT_S, "it is fetched again")


def test_fetcher_that_meets_a_defect_follows_everything_again(
    node: Node, partitions: list[Partition], leader: FakeLeader, fetchers: ReplicaFetchers
) -> None:
    follow(fetchers, leader, *partitions)
    assert asked(leader.next_request()).keys() == {0, 1}
    left = iter(range(2))

    def epoch() -> BrokerEpoch:
        if next(left, None) is not None:
            raise ValueError("not foreseen")
        return BrokerEpoch(5)

    fetchers.epoch = epoch
    leader.answer(node, FetchedPartition(0, 0, 1, 1, 0, batch(0, b"a")))
    again = leader.next_request()
    assert (again.session_epoch, asked(again)[0].fetch_offset, asked(again)[1].fetch_offset) == (0, 1, 0)
    leader.answer(node, FetchedPartition(1, 0, 1, 1, 0, batch(0, b"b")))
    assert leader.next_request().session_epoch == 1
    assert [partition.log_end_offset for partition in partitions] == [1, 1]
    assert node.loops.failures()[f"fetcher-{LEADER}"] == 2
    assert node.loops.troubles() == {}
