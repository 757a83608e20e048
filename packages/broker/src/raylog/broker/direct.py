"""Produce and fetch without a socket: what calls of a broker's actor handle do, by the same partitions and rules."""

from __future__ import annotations

from raylog.broker.config import PRODUCE_CHECK_COMPRESSED
from raylog.broker.handlers.context import Ports
from raylog.broker.handlers.records.commit_wait import Appended, CommitWait
from raylog.broker.partition.types import ACKS, ACKS_ALL
from raylog.broker.storage.log.decompression import RequestDecompression
from raylog.protocol.errors import InvalidRequiredAcks
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import Batches

__all__ = ["fetch", "produce"]

COMMIT_TIMEOUT_MS = 30_000
"""How long acks=all waits for the in-sync replicas: Kafka's default request.timeout.ms."""


def produce(ports: Ports, topic: str, partition: int, batch: bytes, acks: int = ACKS_ALL) -> tuple[Offset, Offset]:
    """Append a whole record batch; the offsets of the first and the last record.

    ``acks`` is as in Kafka: -1 all in-sync replicas, 1 the leader, 0 nobody; an actor call always answers. Raises what
    Partition.append raises, DuplicateSequence for a retry whose offsets are no longer known, NotLeaderOrFollower
    without a lease or when the leadership was lost before the records were committed, NotEnoughReplicasAfterAppend, and
    RequestTimedOut when they were not committed in time.
    """
    if acks not in ACKS:
        raise InvalidRequiredAcks(f"acks={acks} must be -1 (all), 0 or 1")
    tp = TopicPartition(TopicName(topic), PartitionIndex(partition))
    ports.lease.check()
    led = ports.partitions.get(tp)
    decompression = RequestDecompression() if ports.configs.broker()[PRODUCE_CHECK_COMPRESSED] else None
    info = led.append(memoryview(bytearray(batch)), acks=acks, decompression=decompression, now_ms=ports.wall_ms())
    if acks == ACKS_ALL:
        wait = CommitWait(ports.produces, [Appended(led, info)], COMMIT_TIMEOUT_MS)
        while not wait.wait(COMMIT_TIMEOUT_MS / 1000):
            pass
        for error in wait.errors.values():
            raise error
    ports.lease.check()
    duplicate = info.failure(tp)
    if duplicate is not None:
        raise duplicate
    return info.base_offset, info.last_offset


def fetch(ports: Ports, topic: str, partition: int, offset: int, max_bytes: int) -> Batches:
    """The batches from ``offset`` on, undecoded, with the high watermark; none when there is nothing yet.

    Raises what Partition.read raises, and NotLeaderOrFollower without a lease.
    """
    tp = TopicPartition(TopicName(topic), PartitionIndex(partition))
    ports.lease.check()
    found = ports.partitions.get(tp).read(Offset(offset), max_bytes)
    data = b""
    if found.data is not None:
        try:
            data = found.data.read()
        finally:
            found.data.release()
    ports.lease.check()
    return Batches(data, found.high_watermark, offset)
