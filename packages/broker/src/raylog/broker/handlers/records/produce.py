"""Produce (API 0): append record batches to partitions.

v0-2    advertised as Kafka 4 does, because librdkafka decides by them whether it may compress, but refused: their
        record formats are gone, and the connection is closed
v3      transactional id, record format 2
v5      the log's start offset in the answer
v7      zstd; before it, a batch that is compressed so is refused (KIP-110)
v8      which record was wrong, and a message
v9      flexible
v10     the new leader and its address beside NOT_LEADER_OR_FOLLOWER (KIP-951)
v13     topics by id (KIP-516)

A request has one whole batch of format 2 for each partition; anything else is INVALID_RECORD. What the log refuses then
is answered with the log's start, as by Kafka. A partition that comes twice is appended to twice. The answer has a topic
that comes twice once, and none without partitions.

acks=1 is answered when the leader has appended. acks=-1 is refused while fewer than min.insync.replicas are in sync,
and answered once the in-sync replicas have it all, too, or after the request's timeout_ms; the connection takes in the
next requests meanwhile. acks=0 gets no answer, and an error closes the connection, which makes the client look up its
metadata again, as with Kafka.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from uuid import UUID

from raylog.broker.config import PRODUCE_CHECK_COMPRESSED
from raylog.broker.handlers.context import (
    CloseConnection,
    MustWait,
    Operation,
    Ports,
    Reply,
    RequestContext,
    Resource,
)
from raylog.broker.handlers.entities import DelayedResponse, failure
from raylog.broker.handlers.leaders import leader_hint, node_endpoints
from raylog.broker.handlers.records.commit_wait import Appended, CommitWait
from raylog.broker.partition.partition import Partition
from raylog.broker.partition.types import ACKS, ACKS_ALL
from raylog.broker.storage.log.decompression import RequestDecompression
from raylog.protocol.batches.compression import Codec
from raylog.protocol.batches.header import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    HEADER_SIZE,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    read_header,
)
from raylog.protocol.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidRequiredAcks,
    MessageTooLarge,
    NotLeaderOrFollower,
    RaylogError,
    RecordListTooLarge,
    StorageError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    UnknownTopicId,
    UnsupportedCompressionType,
    code_of,
)
from raylog.protocol.ids import NO_OFFSET, Offset, PartitionIndex, TopicId, TopicName, TopicPartition
from raylog.protocol.wire.primitives import FIRST_TOPIC_ID
from raylog.protocol.wire.produce import (
    PartitionRecords,
    ProducedPartition,
    ProducedTopic,
    ProduceRequest,
    ProduceResponse,
    TopicRecords,
    encode_produce_response,
    parse_produce_request,
)

FIRST_WITH_ZSTD = 7

QUICK_BYTES = 16 * 1024
"""Compressed batches of more are not checked in the loop: decompressing takes some 4 ms for a MB of gzip."""

_CODEC_POSITION = ATTRIBUTES_POSITION + 1
_LENGTH_AND_MAGIC = struct.Struct(">i4xb")
_WITHOUT_START = (
    CorruptMessage,
    MessageTooLarge,
    NotLeaderOrFollower,
    RecordListTooLarge,
    StorageError,
    TransactionalIdAuthorizationFailed,
)
"""What an append may fail with that is answered without the log's start, as by Kafka."""


def handle(ctx: RequestContext, body: memoryview, ports: Ports) -> Reply:
    """Append each partition's batches in the request's order.

    Raises CloseConnection for an error at acks=0, InvalidRequest for a body that cannot be parsed.
    """
    request = parse_produce_request(ctx.version, body)
    produce = _Produce(ctx, ports, request.acks)
    refusal = _refusal(request)
    if refusal is None and not ctx.may_wait:
        produce.check_wait(request)
    for topic in request.topics:
        if topic.partitions:
            produce.append(topic, refusal)
    return produce.reply(request.timeout_ms)


def _refusal(request: ProduceRequest) -> RaylogError | None:
    """What is wrong with the whole request."""
    if request.acks not in ACKS:
        return InvalidRequiredAcks(f"acks={request.acks}: must be 0, 1 or -1")
    return None


class _Produce:
    """One request, from its first append to its reply, which with acks=all may come later."""

    __slots__ = ("_acks", "_ctx", "_decompression", "_ports", "_topics", "_uncommitted", "_wait")

    def __init__(self, ctx: RequestContext, ports: Ports, acks: int) -> None:
        self._ctx = ctx
        self._ports = ports
        self._acks = acks
        self._decompression = RequestDecompression() if ports.configs.broker()[PRODUCE_CHECK_COMPRESSED] else None
        self._topics: list[ProducedTopic] = []
        self._uncommitted: list[tuple[list[ProducedPartition], int, Appended]] = []
        """What must be committed before it is acknowledged, with its place in :attr:`_topics`."""
        self._wait: CommitWait | None = None

    def append(self, topic: TopicRecords, refusal: RaylogError | None) -> None:
        """Append one topic's batches, unless ``refusal`` forbids it."""
        ctx, ports = self._ctx, self._ports
        name, topic_id, unknown = self._named(topic)
        refusal = refusal or unknown
        if refusal is None and not ports.authorizer.allows(ctx, Operation.WRITE, Resource.TOPIC, name):
            refusal = TopicAuthorizationFailed(f"{ctx.principal} may not write to topic {name}")
        produced: list[ProducedPartition] = []
        for part in topic.partitions:
            tp = TopicPartition(name, PartitionIndex(part.partition))
            partition: Partition | None = None
            try:
                if refusal is not None:
                    raise refusal
                ports.lease.check()
                led = ports.partitions.get(tp, topic_id)
                records = _one_batch(ctx, tp, part)
                partition = led
                appended = self._append(partition, records)
            except Exception as error:  # noqa: BLE001 (whatever it is, the other partitions go on)
                start = NO_OFFSET
                if partition is not None and not isinstance(error, _WITHOUT_START):
                    start = partition.log_start_offset
                told = failure(error, ctx, f"appending to {tp}")
                produced.append(_failed(ctx, ports, tp, topic_id, told, start))
                continue
            if self._acks == ACKS_ALL:
                self._uncommitted.append((produced, len(produced), appended))
            info = appended.info
            duplicate = info.failure(tp)
            produced.append(
                ProducedPartition(part.partition, 0, info.base_offset, info.log_append_time, info.log_start_offset)
                if duplicate is None
                else _failed(ctx, ports, tp, topic_id, duplicate, info.log_start_offset)
            )
        self._topics.append(ProducedTopic(topic.name, topic.topic_id, produced))

    def _named(self, topic: TopicRecords) -> tuple[TopicName, TopicId | None, RaylogError | None]:
        """A topic's name, the id by which it was asked for, and what is wrong with that."""
        if self._ctx.version < FIRST_TOPIC_ID:
            return TopicName(topic.name), None, None
        known = self._ports.cluster.state().topic_by_id(TopicId(topic.topic_id))
        if known is None:
            return TopicName(topic.name), None, UnknownTopicId(f"no topic has the id {topic.topic_id}")
        return known.name, known.id, None

    def check_wait(self, request: ProduceRequest) -> None:
        """Raises MustWait when one of the appends ends in a sync, or when all together have to decompress much."""
        compressed = 0
        for topic in request.topics:
            name, topic_id, _ = self._named(topic)
            for part in topic.partitions:
                records = part.records
                if records is not None and len(records) > _CODEC_POSITION and records[_CODEC_POSITION] & CODEC_MASK:
                    compressed += len(records)
                with suppress(RaylogError):
                    if self._ports.partitions.get(TopicPartition(name, PartitionIndex(part.partition)), topic_id).syncs:
                        raise MustWait
        if compressed > QUICK_BYTES and self._decompression:
            raise MustWait

    def _append(self, partition: Partition, records: memoryview) -> Appended:
        ports = self._ports
        info = partition.append(records, acks=self._acks, decompression=self._decompression, now_ms=ports.wall_ms())
        ports.lease.check()
        if not info.duplicate:
            counters, topic = self._ctx.connection.counters, partition.tp.topic
            count = info.last_offset - info.base_offset + 1
            counters.messages_in[topic] = counters.messages_in.get(topic, 0) + count
            counters.bytes_in[topic] = counters.bytes_in.get(topic, 0) + len(records)
        return Appended(partition, info)

    def reply(self, timeout_ms: int) -> Reply:
        """The response, or this, when followers must have the records first. Raises CloseConnection."""
        if self._acks == 0:
            _close_on_error(self._topics)
            return None
        if self._uncommitted:
            appended = [appended for _, _, appended in self._uncommitted]
            self._wait = CommitWait(self._ports.produces, appended, timeout_ms)
            if not self._wait.is_over():
                return DelayedResponse(self._wait, self.finish)
        return self.finish()

    def finish(self) -> bytes:
        """As told by the wait, and only while the lease is held: else a newer leader may know better."""
        ctx, ports = self._ctx, self._ports
        errors: dict[int, RaylogError] = {}
        if self._wait is not None:
            errors = self._wait.errors
            try:
                ports.lease.check()
            except RaylogError as lapsed:
                errors = dict.fromkeys(range(len(self._uncommitted)), lapsed)
        for number, error in errors.items():
            produced, place, appended = self._uncommitted[number]
            partition = appended.partition
            produced[place] = _failed(ctx, ports, partition.tp, partition.topic_id, error)
        leaders = [part.leader_id for topic in self._topics for part in topic.partitions if part.leader_id >= 0]
        endpoints = node_endpoints(ctx, ports, leaders) if leaders else ()
        response = ProduceResponse(_once(self._topics), ctx.throttle_ms, endpoints)
        return encode_produce_response(ctx.version, ctx.correlation_id, response)


def _once(topics: list[ProducedTopic]) -> list[ProducedTopic]:
    """Each topic once, however often the request names it."""
    if len(topics) == 1 or len({topic[:2] for topic in topics}) == len(topics):
        return topics
    partitions: dict[tuple[str, UUID], list[ProducedPartition]] = {}
    for topic in topics:
        partitions.setdefault((topic.name, topic.topic_id), []).extend(topic.partitions)
    return [ProducedTopic(*topic, of_it) for topic, of_it in partitions.items()]


def _one_batch(ctx: RequestContext, tp: TopicPartition, part: PartitionRecords) -> memoryview:
    """The partition's records, which are one whole batch of format 2, or damaged, which the log finds out.

    Raises InvalidRecord, UnsupportedCompressionType.
    """
    records = part.records
    if not isinstance(records, memoryview) or not records:
        raise InvalidRecord(f"the request has no record batch for {tp}")
    length, magic = _LENGTH_AND_MAGIC.unpack_from(records, LENGTH_POSITION) if len(records) > MAGIC_POSITION else (0, 0)
    size = LOG_OVERHEAD + length
    if magic == MAGIC and size == len(records) and ctx.version >= FIRST_WITH_ZSTD:
        return records
    if magic < 0 or magic > MAGIC or (magic == MAGIC and size < HEADER_SIZE):
        return records  # damaged
    if size > len(records) or len(records) <= MAGIC_POSITION:
        raise InvalidRecord(f"the batch for {tp} is cut short: {len(records)} bytes are there")
    if magic < MAGIC:
        raise InvalidRecord(f"the batch for {tp} is in message format {magic} (before Kafka 0.11): it is not supported")
    if size < len(records):
        raise InvalidRecord(
            f"{len(records) - size} bytes follow the batch for {tp}: a request has exactly one batch per partition"
        )
    if read_header(records).codec is Codec.ZSTD:
        raise UnsupportedCompressionType(f"{tp}: version {ctx.version} of Produce must not carry zstd")
    return records


def _failed(
    ctx: RequestContext,
    ports: Ports,
    tp: TopicPartition,
    topic_id: TopicId | None,
    error: RaylogError,
    start: Offset = NO_OFFSET,
) -> ProducedPartition:
    code = code_of(error)
    leader, epoch = leader_hint(ports, tp, code, topic_id)
    return ProducedPartition(
        tp.partition,
        code.value,
        log_start_offset=start,
        error_message=str(error),
        leader_id=leader,
        leader_epoch=epoch,
    )


def _close_on_error(topics: list[ProducedTopic]) -> None:
    for topic in topics:
        for part in topic.partitions:
            if part.error_code:
                where = f"{topic.name or topic.topic_id}-{part.partition}"
                raise CloseConnection(f"produce with acks=0 failed at {where}: {part.error_message}")
