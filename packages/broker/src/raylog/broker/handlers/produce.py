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

acks=1 and acks=-1 answer when the leader has appended: with one replica that is all of them. acks=0 gets no
answer, and an error closes the connection, which makes the client look up its metadata again, as with Kafka.
"""

from __future__ import annotations

from raylog.broker.handlers.context import CloseConnection, Operation, Ports, Reply, RequestContext, Resource
from raylog.broker.handlers.entities import failure
from raylog.broker.handlers.leaders import leader_hint, node_endpoints
from raylog.protocol.compression import Codec
from raylog.protocol.errors import (
    InvalidRecord,
    InvalidRequiredAcks,
    RaylogError,
    TopicAuthorizationFailed,
    TransactionalIdNotFound,
    UnknownTopicId,
    UnsupportedCompressionType,
    code_of,
)
from raylog.protocol.ids import PartitionIndex, TopicId, TopicName, TopicPartition
from raylog.protocol.produce import (
    PartitionRecords,
    ProducedPartition,
    ProducedTopic,
    ProduceRequest,
    ProduceResponse,
    TopicRecords,
    encode_produce_response,
    parse_produce_request,
)
from raylog.protocol.records import HEADER_SIZE, read_header
from raylog.protocol.wire import FIRST_TOPIC_ID

FIRST_WITH_ZSTD = 7


def handle(ctx: RequestContext, body: memoryview, ports: Ports) -> Reply:
    """Append each partition's batches in the request's order.

    Raises CloseConnection for an error at acks=0, InvalidRequest for a body that cannot be parsed.
    """
    request = parse_produce_request(ctx.version, body)
    refusal = _refusal(request)
    topics = [_append_topic(ctx, ports, topic, refusal) for topic in request.topics]
    if request.acks == 0:
        _close_on_error(topics)
        return None
    leaders = [part.leader_id for topic in topics for part in topic.partitions if part.leader_id >= 0]
    endpoints = node_endpoints(ctx, ports, leaders) if leaders else ()
    return encode_produce_response(ctx.version, ctx.correlation_id, ProduceResponse(topics, ctx.throttle_ms, endpoints))


def _refusal(request: ProduceRequest) -> RaylogError | None:
    """What is wrong with the whole request."""
    if request.acks not in (-1, 0, 1):
        return InvalidRequiredAcks(f"acks={request.acks}: must be 0, 1 or -1")
    if request.transactional_id is not None:
        return TransactionalIdNotFound(f"transactional.id={request.transactional_id}: transactions are not built yet")
    return None


def _append_topic(ctx: RequestContext, ports: Ports, topic: TopicRecords, refusal: RaylogError | None) -> ProducedTopic:
    name = TopicName(topic.name)
    if ctx.version >= FIRST_TOPIC_ID:
        known = ports.cluster.state().topic_by_id(TopicId(topic.topic_id))
        if known is None:
            refusal = refusal or UnknownTopicId(f"no topic has the id {topic.topic_id}")
        else:
            name = known.name
    if refusal is None and not ports.authorizer.allows(ctx, Operation.WRITE, Resource.TOPIC, name):
        refusal = TopicAuthorizationFailed(f"{ctx.principal} may not write to topic {name}")
    return ProducedTopic(
        topic.name,
        topic.topic_id,
        [_append(ctx, ports, name, part, refusal) for part in topic.partitions],
    )


def _append(
    ctx: RequestContext, ports: Ports, topic: TopicName, part: PartitionRecords, refusal: RaylogError | None
) -> ProducedPartition:
    tp = TopicPartition(topic, PartitionIndex(part.partition))
    try:
        if refusal is not None:
            raise refusal
        records = part.records
        if not isinstance(records, memoryview) or not records:
            raise InvalidRecord(f"the request has no record batch for {tp}")
        if ctx.version < FIRST_WITH_ZSTD and _is_zstd(records):
            raise UnsupportedCompressionType(f"{tp}: version {ctx.version} of Produce must not carry zstd")
        ports.lease.check()
        info = ports.partitions.get(tp).append(records, now_ms=ports.now_ms())
        ports.lease.check()
    except Exception as error:  # noqa: BLE001 (whatever it is, the other partitions go on)
        return _failed(ctx, ports, tp, failure(error, ctx, f"appending to {tp}"))
    if not info.duplicate:
        counters = ctx.connection.counters
        count = info.last_offset - info.base_offset + 1
        counters.messages_in[topic] = counters.messages_in.get(topic, 0) + count
        counters.bytes_in[topic] = counters.bytes_in.get(topic, 0) + len(records)
    return ProducedPartition(part.partition, 0, info.base_offset, info.log_append_time, info.log_start_offset)


def _is_zstd(records: memoryview) -> bool:
    return len(records) >= HEADER_SIZE and read_header(records).codec is Codec.ZSTD


def _failed(ctx: RequestContext, ports: Ports, tp: TopicPartition, error: RaylogError) -> ProducedPartition:
    code = code_of(error)
    leader, epoch = leader_hint(ports, tp, code)
    return ProducedPartition(tp.partition, code.value, error_message=str(error), leader_id=leader, leader_epoch=epoch)


def _close_on_error(topics: list[ProducedTopic]) -> None:
    for topic in topics:
        for part in topic.partitions:
            if part.error_code:
                where = f"{topic.name or topic.topic_id}-{part.partition}"
                raise CloseConnection(f"produce with acks=0 failed at {where}: {part.error_message}")
