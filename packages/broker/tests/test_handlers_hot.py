"""Produce and Fetch, every version, without sockets."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode

from kit.machine import scaled
from kit.node import BROKER, Node, sent
from kit.waiting import wait_until
from kit.wire import fetch_request, produce_request
from raylog.broker.handlers import TABLE, answer
from raylog.broker.handlers.context import CloseConnection, Connection, DelayedReply, MustWait, Reply
from raylog.protocol.batches.compression import Codec
from raylog.protocol.ids import Offset, TimestampMs, TopicName
from raylog.protocol.records import Record, decode_batches, encode_batch
from raylog.protocol.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    parse_fetch_response,
)
from raylog.protocol.wire.primitives import ZERO_UUID
from raylog.protocol.wire.produce import (
    PartitionRecords,
    ProducedPartition,
    ProduceRequest,
    TopicRecords,
    encode_produce_request,
    parse_produce_response,
)

PRODUCE, FETCH = TABLE[0], TABLE[1]
PRODUCE_VERSIONS = range(PRODUCE.min_version, PRODUCE.max_version + 1)
FETCH_VERSIONS = range(FETCH.min_version, FETCH.max_version + 1)
BATCH = encode_batch([Record(b"one", b"k", timestamp=1), Record(b"two", timestamp=2)])
TRANSACTIONAL = encode_batch([Record(b"x")], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
ZSTD = encode_batch([Record(b"zstd")], codec=Codec.ZSTD)
IDLE = 300
"""Partitions that nobody writes to."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as node:
        node.create_topic("t", leader_epoch=3)
        yield node


def produce(node: Node, version: int = 9, batch: bytes = BATCH, **options: Any) -> ProducedPartition:
    topic = node.table.state().topics[next(iter(node.table.state().topics))]
    options.setdefault("topic_id", topic.id if version >= 13 else ZERO_UUID)
    name = options.pop("topic", "t")
    connection = options.pop("connection", None)
    frame = produce_request(name, batch, version=version, **options)
    reply = node.answer(frame[4:], connection)
    assert isinstance(reply, bytes)
    correlation_id, response = parse_produce_response(version, reply)
    assert correlation_id == 7
    return response.topics[0].partitions[0]


def append(node: Node, *values: bytes, topic: str = "t", partition: int = 0) -> None:
    batch = encode_batch([Record(value) for value in values])
    node.partition(topic, partition).append(memoryview(bytearray(batch)), now_ms=TimestampMs(1))


def want(
    offset: int = 0, *, topic: str = "t", topic_id: Any = ZERO_UUID, partition: int = 0, **options: Any
) -> FetchTopic:
    part = {"max_bytes": 1 << 20, **options}
    return FetchTopic(topic, topic_id, [FetchPartition(partition, offset, **part)])


def fetch(
    node: Node, *topics: FetchTopic, version: int = 12, connection: Connection | None = None, **options: Any
) -> FetchResponse[memoryview]:
    return answered(ask(node, *topics, version=version, connection=connection, **options), version)


def ask(
    node: Node, *topics: FetchTopic, version: int = 12, connection: Connection | None = None, **options: Any
) -> Reply:
    parsed = FetchRequest(**{"max_wait_ms": 0, "min_bytes": 1, "topics": topics, **options})
    return node.answer(fetch_request(version, parsed)[4:], connection)


def answered(reply: Reply, version: int = 12) -> FetchResponse[memoryview]:
    correlation_id, response = parse_fetch_response(version, sent(reply))
    assert correlation_id == 7
    return response


def only(response: FetchResponse[memoryview]) -> FetchedPartition[memoryview]:
    [topic] = response.topics
    [partition] = topic.partitions
    return partition


def values(partition: FetchedPartition[memoryview], offset: int = 0) -> list[bytes | None]:
    return [record.value for record in decode_batches(partition.records or b"", from_offset=offset)]


# --- Produce
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
def test_produce_appends_and_tells_offsets(node: Node, version: int, acks: int) -> None:
    first, second = produce(node, version, acks=acks), produce(node, version, acks=acks)
    assert (first.error_code, first.base_offset) == (0, 0)
    assert (second.error_code, second.base_offset) == (0, 2)
    assert first.log_start_offset == (0 if version >= 5 else -1)
    assert values(only(fetch(node, want()))) == [b"one", b"two"] * 2


def test_produce_without_acks_has_no_reply(node: Node) -> None:
    assert node.answer(produce_request("t", BATCH, acks=0)[4:]) is None
    assert values(only(fetch(node, want()))) == [b"one", b"two"]


def test_produce_without_acks_ends_the_connection_on_an_error(node: Node) -> None:
    with pytest.raises(CloseConnection, match="unknown-0"):
        node.answer(produce_request("unknown", BATCH, acks=0)[4:])


def in_the_loop(node: Node, topic: str, batch: bytes) -> Reply:
    frame = memoryview(bytearray(produce_request(topic, batch)[4:]))
    return answer(Connection("PLAINTEXT"), frame, node.ports, may_wait=False)


def test_produce_that_ends_in_a_sync_must_wait_elsewhere(node: Node) -> None:
    node.create_topic("synced", config={"flush.messages": "1"})
    with pytest.raises(MustWait):
        in_the_loop(node, "synced", BATCH)
    assert node.partition("synced").log_end_offset == 0, "nothing was done yet"
    assert in_the_loop(node, "t", BATCH) is not None


@pytest.mark.parametrize(
    ("parts", "waits"),
    [
        ([("t", BATCH), ("synced", BATCH)], True),
        ([("t", BATCH), ("t", encode_batch([Record(os.urandom(100_000))], codec=Codec.GZIP))], True),
        ([("t", encode_batch([Record(os.urandom(5_000))], codec=Codec.GZIP))] * 4, True),
        ([("t", encode_batch([Record(os.urandom(5_000))], codec=Codec.GZIP))] * 2, False),
        ([("t", BATCH), ("absent", BATCH)], False),
    ],
    ids=["a sync", "a large batch", "many batches", "few batches", "an unknown topic"],
)
def test_any_part_of_a_produce_request_may_have_to_wait(
    node: Node, parts: list[tuple[str, bytes]], waits: bool
) -> None:
    node.create_topic("synced", config={"flush.messages": "1"})
    topics = [TopicRecords(name, ZERO_UUID, [PartitionRecords(0, batch)]) for name, batch in parts]
    parsed = ProduceRequest(None, 1, 1000, topics)
    frame = memoryview(bytearray(b"".join(encode_produce_request(9, parsed, correlation_id=1, client_id="c"))))
    if not waits:
        assert answer(Connection("PLAINTEXT"), frame[4:], node.ports, may_wait=False) is not None
        return
    with pytest.raises(MustWait):
        answer(Connection("PLAINTEXT"), frame[4:], node.ports, may_wait=False)
    assert node.partition("t").log_end_offset == 0, "nothing was done yet"


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_produce_that_decompresses_much_must_wait_elsewhere(node: Node, codec: Codec) -> None:
    small = encode_batch([Record(b"x")], codec=codec)
    large = encode_batch([Record(os.urandom(100_000))], codec=codec)
    assert in_the_loop(node, "t", small) is not None
    if codec is Codec.NONE:
        assert in_the_loop(node, "t", large) is not None
        return
    with pytest.raises(MustWait):
        in_the_loop(node, "t", large)
    assert node.partition("t").log_end_offset == 1, "nothing was done yet"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"topic": "unknown"}, ErrorCode.unknown_topic_or_partition),
        ({"partition": 9}, ErrorCode.unknown_topic_or_partition),
        ({"partition": -1}, ErrorCode.unknown_topic_or_partition),
        ({"acks": 2}, ErrorCode.invalid_required_acks),
        ({"batch": b""}, ErrorCode.invalid_record),
        ({"batch": BATCH * 2}, ErrorCode.invalid_record),
        ({"batch": ZSTD, "version": 6}, ErrorCode.unsupported_compression_type),
        ({"batch": BATCH[:30], "version": 6}, ErrorCode.invalid_record),
        ({"batch": BATCH[:-1]}, ErrorCode.invalid_record),
        ({"batch": BATCH[:30]}, ErrorCode.invalid_record),
        ({"batch": BATCH[:5]}, ErrorCode.invalid_record),
        ({"batch": BATCH + bytes(3)}, ErrorCode.invalid_record),
        ({"batch": BATCH[:16] + b"\1" + BATCH[17:], "version": 6}, ErrorCode.invalid_record),
        ({"batch": BATCH[:16] + b"\3" + BATCH[17:], "version": 6}, ErrorCode.corrupt_message),
        ({"batch": BATCH[:8] + bytes(4) + BATCH[12:]}, ErrorCode.corrupt_message),
        ({"batch": BATCH[:8] + b"\xff" * 4 + BATCH[12:], "version": 6}, ErrorCode.corrupt_message),
        ({"batch": BATCH[:16] + b"\1" + BATCH[17:], "topic": "unknown"}, ErrorCode.unknown_topic_or_partition),
        ({"batch": ZSTD, "version": 6, "topic": "unknown"}, ErrorCode.unknown_topic_or_partition),
        ({"batch": b"", "partition": 9}, ErrorCode.unknown_topic_or_partition),
        ({"version": 13, "topic_id": uuid4()}, ErrorCode.unknown_topic_id),
        ({"batch": TRANSACTIONAL}, ErrorCode.transactional_id_authorization_failed),
        ({"batch": TRANSACTIONAL, "transactional_id": "x"}, ErrorCode.transactional_id_authorization_failed),
    ],
)
def test_produce_errors(node: Node, options: dict[str, Any], code: ErrorCode) -> None:
    part = produce(node, **options)
    assert part.error_code == code
    assert part.base_offset == -1
    assert node.partition("t").log_end_offset == 0


def test_produce_with_transactional_id_may_carry_a_plain_batch(node: Node) -> None:
    assert (produce(node, transactional_id="x").error_code, produce(node, transactional_id="").base_offset) == (0, 2)


@pytest.mark.parametrize(
    ("batch", "start"),
    [
        (b"\0" * 7 + b"\1" + BATCH[8:], 1),
        (encode_batch([Record(b"late", timestamp=1 << 60)]), 1),
        (BATCH[:-1] + b"?", -1),
        (BATCH * 2, -1),
        (TRANSACTIONAL, -1),
    ],
    ids=["base offset", "future", "flipped", "two", "transactional"],
)
def test_produce_refused_by_the_log_tells_its_start(node: Node, batch: bytes, start: int) -> None:
    produce(node)
    node.partition("t").delete_records(Offset(1))
    part = produce(node, batch=batch)
    assert part.error_code != 0
    assert part.log_start_offset == start


def test_produce_of_an_old_duplicate_tells_the_logs_start(node: Node) -> None:
    for sequence in [*range(7), 0]:
        ours = {"producer_id": 1, "producer_epoch": 0, "base_sequence": sequence}
        part = produce(node, batch=encode_batch([Record(b"x")], **ours))
    assert (part.error_code, part.base_offset) == (ErrorCode.duplicate_sequence_number, -1)
    assert part.log_start_offset == 0


def test_produce_answers_each_partition_that_was_named(node: Node) -> None:
    parts = [PartitionRecords(0, memoryview(BATCH)), PartitionRecords(0, memoryview(BATCH))]
    topics = [TopicRecords("u", ZERO_UUID, []), TopicRecords("t", ZERO_UUID, parts)]
    request = ProduceRequest(None, 1, 1_000, topics)
    frame = b"".join(encode_produce_request(9, request, correlation_id=7, client_id=None))
    reply = node.answer(frame[4:])
    assert isinstance(reply, bytes)
    [topic] = parse_produce_response(9, reply)[1].topics
    assert (topic.name, [part.base_offset for part in topic.partitions]) == ("t", [0, 2])


def test_produce_says_why(node: Node) -> None:
    assert "unknown-0" in (produce(node, 8, topic="unknown").error_message or "")


def test_produce_to_the_wrong_broker_tells_the_leader(node: Node) -> None:
    node.create_topic("t", leader=2, leader_epoch=9)
    part = produce(node, 10)
    assert part.error_code == ErrorCode.not_leader_or_follower
    assert (part.leader_id, part.leader_epoch) == (2, 9)


def test_produce_without_lease_is_refused(node: Node) -> None:
    node.lease_held = False
    assert produce(node).error_code == ErrorCode.not_leader_or_follower
    node.lease_held = True
    assert node.partition("t").log_end_offset == 0


def test_produce_counts(node: Node) -> None:
    connection = Connection("PLAINTEXT")
    produce(node, connection=connection)
    produce(node, topic="unknown", connection=connection)
    assert connection.counters.messages_in == {"t": 2}
    assert connection.counters.bytes_in == {"t": len(BATCH)}


# --- Fetch
# ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_fetch_reads_from_an_offset(node: Node, version: int, isolation_level: int) -> None:
    append(node, b"a", b"b")
    append(node, b"c")
    topic_id = node.table.state().topics[node.partition("t").tp.topic].id if version >= 13 else ZERO_UUID
    response = fetch(node, want(1, topic_id=topic_id), version=version, isolation_level=isolation_level)
    part = only(response)
    assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 3, 3)
    assert values(part, 1) == [b"b", b"c"]
    assert part.aborted == ([] if isolation_level else None)
    assert response.session_id == 0


def test_fetch_that_waited_holds_no_file_open(node: Node) -> None:
    before = len(os.listdir("/proc/self/fd"))
    node.create_topic("u")
    append(node, b"a", topic="u")
    assert values(only(fetch(node, want(topic="u"), max_wait_ms=1, min_bytes=1 << 20))) == [b"a"]
    node.delete_topics([TopicName("u")], timeout_ms=0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_fetch_at_the_end_is_empty_and_beyond_it_out_of_range(node: Node) -> None:
    append(node, b"a")
    assert values(only(fetch(node, want(1)))) == []
    assert only(fetch(node, want(2))).error_code == ErrorCode.offset_out_of_range


def test_fetch_ahead_of_a_new_leaders_high_watermark_waits_and_is_not_out_of_range(node: Node) -> None:
    """Out of range would have a consumer begin anew, at the end: what it asks for is here, and committed soon."""
    node.create_topic("t", replicas=(BROKER, 2), leader_epoch=4)
    append(node, b"a", b"b")
    node.create_topic("t", replicas=(BROKER, 2), leader_epoch=5)
    for offset in 1, 2:
        part = only(fetch(node, want(offset)))
        assert (part.error_code, part.high_watermark, values(part)) == (0, 0, [])
    assert only(fetch(node, want(3))).error_code == ErrorCode.offset_out_of_range


def test_fetch_returns_one_batch_even_if_it_is_larger_than_allowed(node: Node) -> None:
    append(node, bytes(5000))
    append(node, b"next")
    assert values(only(fetch(node, want(0, max_bytes=1), max_bytes=1))) == [bytes(5000)]


def test_fetch_counts_all_partitions_towards_max_bytes(node: Node) -> None:
    node.create_topic("u", partitions=3)
    for index in range(3):
        append(node, bytes(1000), topic="u", partition=index)
    response = fetch(node, *(want(topic="u", partition=index) for index in range(3)), max_bytes=1500)
    sizes = [len(topic.partitions[0].records or b"") for topic in response.topics]
    assert sizes[0] > 1000
    assert sum(sizes) <= 1500


def test_fetch_serves_the_partitions_beside_a_failed_one(node: Node) -> None:
    append(node, b"a")
    response = fetch(node, want(topic="unknown"), want(), max_wait_ms=10_000, min_bytes=1 << 20)
    codes = [topic.partitions[0].error_code for topic in response.topics]
    assert codes == [ErrorCode.unknown_topic_or_partition, 0]
    assert values(response.topics[1].partitions[0]) == [b"a"]


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (2, ErrorCode.fenced_leader_epoch),
        (3, ErrorCode.none),
        (4, ErrorCode.unknown_leader_epoch),
        (-2, ErrorCode.none),
        (-(2**31), ErrorCode.none),
    ],
)
def test_fetch_is_fenced_by_epoch(node: Node, epoch: int, code: ErrorCode) -> None:
    assert only(fetch(node, want(current_leader_epoch=epoch))).error_code == code


@pytest.mark.parametrize(("epoch", "code"), [(-2, 0), (3, 0), (4, ErrorCode.offset_out_of_range)])
def test_fetch_by_a_consumer_with_a_future_last_epoch_is_out_of_range(node: Node, epoch: int, code: int) -> None:
    append(node, b"a")
    assert only(fetch(node, want(last_fetched_epoch=epoch))).error_code == code


def test_fetch_tells_a_consumer_where_its_last_epoch_ended(node: Node) -> None:
    append(node, b"a")
    node.create_topic("t", leader_epoch=5)
    append(node, b"b")
    part = only(fetch(node, want(2, last_fetched_epoch=3)))
    assert (part.error_code, part.records or b"", part.diverging_epoch) == (0, b"", (3, 1))


@pytest.mark.parametrize("twice", [(want(1), want(0)), (want(9), want(topic="u"), want(0))])
def test_fetch_of_a_partition_twice_answers_it_once(node: Node, twice: tuple[FetchTopic, ...]) -> None:
    append(node, b"a")
    response = fetch(node, FetchTopic("u", ZERO_UUID, []), *twice)
    assert response.topics[0].name == "t"
    assert len(response.topics) == len({topic.name for topic in twice})
    [part] = response.topics[0].partitions
    assert values(part) == [b"a"]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_with_an_unknown_isolation_level_fails_as_a_whole(node: Node, version: int) -> None:
    topic_id = node.table.state().topics[TopicName("t")].id
    response = fetch(node, want(topic_id=topic_id), version=version, isolation_level=2)
    assert response.error_code == (ErrorCode.unknown_server_error if version >= 7 else 0)
    codes = [part.error_code for topic in response.topics for part in topic.partitions]
    assert codes == ([ErrorCode.unknown_server_error] if version < 13 else [])


@pytest.mark.parametrize("options", [{"max_bytes": -1}, {}])
def test_fetch_of_a_negative_number_of_bytes_fails(node: Node, options: dict[str, int]) -> None:
    append(node, b"a")
    part = only(fetch(node, want(max_bytes=1 if options else -1), **options))
    assert part.error_code == ErrorCode.unknown_server_error


def test_fetch_names_aborted_transactions_as_kafka_where_it_fails(node: Node) -> None:
    assert only(fetch(node, want(topic="unknown"))).aborted == []
    assert only(fetch(node, want(9))).aborted is None


def test_fetch_from_the_wrong_broker_tells_the_leader(node: Node) -> None:
    topic = node.create_topic("t", leader=2, leader_epoch=9)
    part = only(fetch(node, want(topic_id=topic.id), version=16))
    assert part.error_code == ErrorCode.not_leader_or_follower
    assert (part.leader_id, part.leader_epoch) == (2, 9)


def test_fetch_of_an_unknown_topic_id(node: Node) -> None:
    assert only(fetch(node, want(topic_id=uuid4()), version=13)).error_code == ErrorCode.unknown_topic_id


def test_fetch_by_a_broker_is_refused_before_replication_is_built(node: Node) -> None:
    assert only(fetch(node, want(), replica_id=2)).error_code == ErrorCode.not_leader_or_follower


def test_fetch_without_lease_is_refused(node: Node) -> None:
    node.lease_held = False
    assert only(fetch(node, want())).error_code == ErrorCode.not_leader_or_follower


def test_fetch_counts(node: Node) -> None:
    append(node, b"a")
    connection = Connection("PLAINTEXT")
    part = only(fetch(node, want(), connection=connection))
    assert connection.counters.bytes_out == {"t": len(part.records or b"")}


# --- waiting
# ----------------------------------------------------------------------------------------------------


class Later:
    """A fetch that waits in a thread of its own."""

    def __init__(self, node: Node, *topics: FetchTopic, **options: Any) -> None:
        self.result: FetchResponse[memoryview] | None = None

        def run() -> None:
            self.result = fetch(node, *topics, **options)

        before = node.delayed.waiting
        self.thread = threading.Thread(target=run)
        self.thread.start()
        wait_until(lambda: node.delayed.waiting > before or self.result, 5, "the fetch waits")

    def finish(self) -> FetchResponse[memoryview]:
        self.thread.join(scaled(10))
        assert self.result is not None, "the fetch still waits"
        return self.result


def test_a_fetch_waits_for_min_bytes(node: Node) -> None:
    later = Later(node, want(), max_wait_ms=60_000, min_bytes=200)
    append(node, bytes(50))
    assert later.result is None
    append(node, bytes(50))
    assert values(only(later.finish())) == [bytes(50)] * 2
    assert len(node.delayed) == 0


def test_a_fetch_ends_after_max_wait_with_what_is_there(node: Node) -> None:
    append(node, b"little")
    begun = time.monotonic()
    part = only(fetch(node, want(), max_wait_ms=60, min_bytes=1 << 20))
    assert 0.05 < time.monotonic() - begun < 5
    assert values(part) == [b"little"]
    assert len(node.delayed) == 0


def test_a_fetch_waits_on_all_its_partitions_and_leaves_none_behind(node: Node) -> None:
    node.create_topic("u", partitions=2)
    for count in range(1, 20):
        topics = [want(count - 1, topic="u", partition=0), want(topic="u", partition=1)]
        later = Later(node, *topics, max_wait_ms=60_000)
        append(node, b"x", topic="u", partition=0)
        assert values(later.finish().topics[0].partitions[0], count - 1) == [b"x"]
    assert len(node.delayed) == 0


def test_a_waiting_fetch_hears_that_the_leader_changed(node: Node) -> None:
    later = Later(node, want(), max_wait_ms=60_000)
    node.create_topic("t", leader=2, leader_epoch=4)
    assert only(later.finish()).error_code == ErrorCode.not_leader_or_follower


def delayed(reply: Reply) -> DelayedReply:
    assert isinstance(reply, DelayedReply)
    return reply


def test_a_fetch_that_nobody_waits_for_leaves_nothing_behind(node: Node) -> None:
    reply = delayed(ask(node, want(), max_wait_ms=60_000))
    assert (len(node.delayed), node.delayed.waiting) == (1, 1)
    reply.abandon()
    assert (len(node.delayed), node.delayed.waiting) == (0, 0)


def test_a_fetch_that_nobody_waits_for_gives_back_what_it_found(node: Node) -> None:
    reply = delayed(ask(node, want(), max_wait_ms=60_000))
    append(node, b"one")
    assert reply.is_over()
    reply.abandon()
    assert len(node.delayed) == 0


def test_a_fetch_in_a_session_that_nobody_waits_for_does_not_wait(node: Node) -> None:
    client = SessionClient(node, "t", 0)
    reply = delayed(ask(node, session_id=client.session_id, session_epoch=client.epoch, max_wait_ms=60_000))
    assert node.delayed.waiting == 1
    reply.abandon()
    assert (len(node.delayed), node.delayed.waiting) == (1, 0)


def test_a_fetch_tells_its_waiter_once_there_is_enough(node: Node) -> None:
    reply = delayed(ask(node, want(), max_wait_ms=60_000, min_bytes=200))
    told: list[bool] = []
    reply.notify(lambda: told.append(True))
    append(node, bytes(50))
    assert not told
    append(node, bytes(50))
    assert told
    assert values(only(answered(reply))) == [bytes(50)] * 2


# --- sessions
# ---------------------------------------------------------------------------------------------------


class SessionClient:
    """A client with a fetch session over partitions of one topic, as KIP-227 wants it."""

    def __init__(self, node: Node, topic: str, *indexes: int, version: int = 12) -> None:
        self.node = node
        self.version = version
        self.topic = topic
        self.topic_id = node.table.state().topics[node.partition(topic).tp.topic].id if version >= 13 else ZERO_UUID
        self.offsets = dict.fromkeys(indexes, 0)
        response = self._send(self._topics(indexes), 0, 0)
        self.session_id = response.session_id
        self.epoch = 1
        self.got(response)

    def _topics(self, indexes: Any) -> list[FetchTopic]:
        parts = [FetchPartition(index, self.offsets[index], 1 << 20) for index in indexes]
        return [FetchTopic("" if self.version >= 13 else self.topic, self.topic_id, parts)] if parts else []

    def _send(self, topics: Any, session_id: int, epoch: int, **options: Any) -> FetchResponse[memoryview]:
        return fetch(self.node, *topics, version=self.version, session_id=session_id, session_epoch=epoch, **options)

    def go_on(self, *changed: int, **options: Any) -> FetchResponse[memoryview]:
        """The next request, which names the ``changed`` partitions only."""
        response = self._send(self._topics(changed), self.session_id, self.epoch, **options)
        self.epoch += 1
        return response

    def got(self, response: FetchResponse[memoryview]) -> dict[int, list[bytes | None]]:
        """The records in the response by partition; the client's offsets follow them."""
        values_of = {}
        for topic in response.topics:
            for part in topic.partitions:
                values_of[part.partition] = found = values(part, self.offsets[part.partition])
                self.offsets[part.partition] += len(found)
        return values_of


@pytest.mark.parametrize("version", range(7, FETCH.max_version + 1))
def test_a_session_tells_what_changed(node: Node, version: int) -> None:
    node.create_topic("u", partitions=3)
    append(node, b"a", topic="u", partition=1)
    client = SessionClient(node, "u", 0, 1, 2, version=version)
    assert client.session_id > 0
    assert client.offsets == {0: 0, 1: 1, 2: 0}
    assert client.got(client.go_on(1)) == {}
    append(node, b"b", topic="u", partition=2)
    response = client.go_on()
    assert (response.error_code, response.session_id) == (0, client.session_id)
    assert client.got(response) == {2: [b"b"]}
    assert client.got(client.go_on(2)) == {}


@pytest.mark.parametrize("version", [4, 5, 6])
def test_old_versions_know_no_sessions(node: Node, version: int) -> None:
    assert fetch(node, want(), version=version, session_epoch=0).session_id == 0
    assert len(node.fetch_sessions) == 0


def test_a_session_begun_without_partitions_takes_them_later(node: Node) -> None:
    append(node, b"a")
    begun = fetch(node, session_epoch=0)
    assert begun.session_id != 0
    added = fetch(node, want(), session_id=begun.session_id, session_epoch=1)
    assert (added.error_code, values(only(added))) == (0, [b"a"])


def test_a_session_waits_for_any_of_its_partitions(node: Node) -> None:
    node.create_topic("u", partitions=2)
    client = SessionClient(node, "u", 0, 1)
    client.go_on()
    for count, index in enumerate([0, 1, 0, 1]):
        later = Later(node, max_wait_ms=60_000, session_id=client.session_id, session_epoch=client.epoch + 2 * count)
        append(node, b"x", topic="u", partition=index)
        assert client.got(later.finish()) == {index: [b"x"]}
        moved = client._send(client._topics([index]), client.session_id, client.epoch + 2 * count + 1)
        assert moved.topics == []


def test_a_session_waits_for_min_bytes_over_its_partitions(node: Node) -> None:
    node.create_topic("u", partitions=2)
    client = SessionClient(node, "u", 0, 1)
    client.go_on()
    options = {"max_wait_ms": 60_000, "min_bytes": 200, "session_id": client.session_id}
    later = Later(node, session_epoch=client.epoch, **options)
    append(node, bytes(50), topic="u", partition=0)
    assert later.result is None
    append(node, bytes(50), topic="u", partition=1)
    assert client.got(later.finish()) == {0: [bytes(50)], 1: [bytes(50)]}


def test_records_that_the_client_did_not_take_are_sent_again(node: Node) -> None:
    client = SessionClient(node, "t", 0)
    append(node, b"a")
    for _ in range(2):
        assert values(only(client.go_on())) == [b"a"]
    client.offsets[0] = 1
    assert client.go_on(0).topics == []


def test_what_did_not_fit_into_one_response_comes_with_the_next(node: Node) -> None:
    node.create_topic("u", partitions=3)
    client = SessionClient(node, "u", 0, 1, 2)
    client.go_on()
    for index in range(3):
        append(node, bytes(1000), topic="u", partition=index)
    seen: list[int] = []
    for _ in range(3):
        got = {index: found for index, found in client.got(client.go_on(*seen[-1:], max_bytes=1100)).items() if found}
        seen += got
    assert seen == [0, 1, 2]


def test_a_session_hears_of_leaders_starts_and_deletion(node: Node) -> None:
    append(node, b"a")
    client = SessionClient(node, "t", 0)
    assert client.go_on(0).topics == []
    node.create_topic("t", leader=2, leader_epoch=9)
    for _ in range(2):
        assert only(client.go_on()).error_code == ErrorCode.not_leader_or_follower
    node.create_topic("t", leader_epoch=10)
    assert only(client.go_on()).error_code == 0
    assert client.go_on().topics == []
    node.delete_topics([node.partition("t").tp.topic], timeout_ms=0)
    assert only(client.go_on()).error_code == ErrorCode.unknown_topic_or_partition


def test_a_session_without_lease_refuses_everything(node: Node) -> None:
    client = SessionClient(node, "t", 0)
    assert client.go_on().topics == []
    node.lease_held = False
    assert only(client.go_on()).error_code == ErrorCode.not_leader_or_follower
    node.lease_held = True
    assert only(client.go_on()).error_code == 0
    assert client.go_on().topics == []


def test_a_topic_that_was_made_again_is_another_one(node: Node) -> None:
    client = SessionClient(node, "t", 0, version=13)
    node.delete_topics([node.partition("t").tp.topic], timeout_ms=0)
    node.create_topic("t")
    append(node, b"new")
    assert only(client.go_on()).error_code == ErrorCode.unknown_topic_id
    assert only(client.go_on()).error_code == ErrorCode.unknown_topic_id


@pytest.mark.parametrize(
    ("session_id", "epoch", "version", "code"),
    [
        (5, 1, 12, ErrorCode.fetch_session_id_not_found),
        (0, 1, 12, ErrorCode.fetch_session_id_not_found),
        (1, 2, 12, ErrorCode.invalid_fetch_session_epoch),
        (1, 1, 13, ErrorCode.fetch_session_topic_id_error),
    ],
    ids=str,
)
def test_session_errors_are_of_the_whole_response(
    node: Node, session_id: int, epoch: int, version: int, code: ErrorCode
) -> None:
    SessionClient(node, "t", 0)
    response = fetch(node, version=version, session_id=session_id, session_epoch=epoch)
    assert (response.error_code, response.session_id, list(response.topics)) == (code, 0, [])


def test_a_request_that_overtakes_a_waiting_one_ends_it(node: Node) -> None:
    client = SessionClient(node, "t", 0)
    client.go_on()
    waiting = Later(node, max_wait_ms=60_000, session_id=client.session_id, session_epoch=client.epoch)
    client.epoch += 1
    assert client.go_on().topics == []
    assert waiting.finish().error_code == ErrorCode.invalid_fetch_session_epoch
    append(node, b"a")
    assert client.got(client.go_on()) == {0: [b"a"]}


def test_a_session_with_many_idle_partitions_reads_none_of_them(
    node: Node, record_property: Callable[[str, object], None]
) -> None:
    node.create_topic("wide", partitions=IDLE)
    client = SessionClient(node, "wide", *range(IDLE))
    client.go_on()
    begun = time.thread_time()
    for _ in range(100):
        assert client.go_on().topics == []
    idle_s = time.thread_time() - begun
    append(node, b"x", topic="wide", partition=177)
    assert client.got(client.go_on()) == {177: [b"x"]}
    begun = time.thread_time()
    for _ in range(3):
        fetch(node, *client._topics(range(IDLE)))
    full_s = time.thread_time() - begun
    record_property(f"µs a fetch of {IDLE} idle partitions: in a session, without", (idle_s * 1e4, full_s / 3e-6))
    assert idle_s / 100 < full_s / 3 / 5, (idle_s, full_s)
