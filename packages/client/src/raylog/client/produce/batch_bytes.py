"""◆ Batches to the bytes that a Produce request carries, and what the answer says of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from raylog.client.batches.accumulator import Batch
from raylog.client.config.compression import Compression
from raylog.client.network.connection import Address
from raylog.client.produce.producer_state import Identity
from raylog.protocol.errors import InvalidRecord, NetworkException, RaylogError, exception_for
from raylog.protocol.ids import PartitionIndex, TopicId, TopicName, TopicPartition
from raylog.protocol.logs import Logger
from raylog.protocol.records import encode_batch, frame_batch
from raylog.protocol.texts import told
from raylog.protocol.wire.primitives import NodeEndpoint
from raylog.protocol.wire.produce import ProducedPartition, parse_produce_response

log = Logger(__name__)

PRODUCE_VERSION = 13
"""Topics by their ids (KIP-516): what was meant for a topic that is gone never gets into another of its name."""


class Sent(NamedTuple):
    """What a request carried, and the ids that its topics had."""

    batches: Mapping[TopicPartition, Batch[Any]]
    ids: Mapping[TopicName, TopicId]
    address: Address
    """Of the broker that it went to."""


def encode(batch: Batch[Any], identity: Identity, compression: Compression) -> bytes:
    """The batch as ``identity`` sends it, under its sequence."""
    if batch.encoded is not None:
        return frame_batch(
            *batch.encoded[1:],
            codec=compression.codec,
            level=compression.level,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=batch.sequence,
        )
    return encode_batch(
        batch.records,
        codec=compression.codec,
        level=compression.level,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=batch.sequence,
    )


def read_produced(
    frame: memoryview, problem: RaylogError | None, sent: Sent
) -> tuple[dict[TopicPartition, ProducedPartition | RaylogError], Sequence[NodeEndpoint]]:
    """What the broker says of each partition that was ``sent`` there, and where other brokers listen.

    ``problem``: why no answer came. NetworkException for those of which nothing is known: no answer, none that
    can be read, or one without them.
    """
    answers: dict[TopicPartition, ProducedPartition | RaylogError] = {}
    endpoints: Sequence[NodeEndpoint] = ()
    if problem is None:
        try:
            _, response = parse_produce_response(PRODUCE_VERSION, frame)
        except RaylogError as malformed:
            problem = malformed
        else:
            endpoints = response.node_endpoints
            names = {topic_id: name for name, topic_id in sent.ids.items()}
            for topic in response.topics:
                name = names.get(TopicId(topic.topic_id), TopicName(""))
                for partition in topic.partitions:
                    answers[TopicPartition(name, PartitionIndex(partition.partition))] = partition
    lost = NetworkException(str(problem or "the broker's answer leaves out a partition"))
    return {tp: answers.get(tp, lost) for tp in sent.batches}, endpoints


def error_of(tp: TopicPartition, result: ProducedPartition) -> RaylogError | None:
    """What the broker refused the batch with; None when it took it."""
    if result.error_code == 0:
        return None
    return exception_for(result.error_code, f"{tp}: {result.error_message or 'the broker refused a batch'}")


def unfit(what: str, error: Exception) -> RaylogError:
    """The error for records that could not be put into bytes."""
    if isinstance(error, RaylogError):
        return error
    log.error("%s: records could not be written into a request", what, exc_info=error)
    return InvalidRecord(f"{what}: the records could not be written into a request: {told(error)}")
