"""Names for numbers: plain values at run time, and partitions that print as directories."""

from __future__ import annotations

from raylog.protocol.ids import NO_TOPIC_ID, Offset, PartitionIndex, TopicId, TopicName, TopicPartition
from raylog.protocol.wire.primitives import ZERO_UUID


def test_a_partition_prints_as_its_directory() -> None:
    assert str(TopicPartition(TopicName("flights"), PartitionIndex(3))) == "flights-3"


def test_partitions_are_values() -> None:
    one = TopicPartition(TopicName("t"), PartitionIndex(0))
    other = TopicPartition(TopicName("t"), PartitionIndex(0))
    assert one == other
    assert len({one, other}) == 1
    assert sorted([TopicPartition(TopicName("t"), PartitionIndex(1)), one])[0] is one


def test_ids_are_plain_values() -> None:
    assert Offset(5) + 1 == 6
    assert TopicId(ZERO_UUID) == NO_TOPIC_ID
