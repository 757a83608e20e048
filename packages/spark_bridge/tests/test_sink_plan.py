"""What a sink writes down, and how it numbers rows."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.client.produce.producer_state import MAX_EPOCH, Identity
from raylog.protocol.errors import InvalidPartitions
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.spark.writing.sink_plan import BatchPlan, Target, is_of_sink, next_to_json
from raylog.spark.writing.sink_task import Numbering
from raylog.spark.writing.sink_topics import ProducerNames

TOPIC = TopicName("t")


def planned(*files: str) -> BatchPlan:
    names = {name: Identity(number, 0) for number, name in enumerate(files)}
    return BatchPlan(7, TOPIC, "rows", names, 9, {TOPIC: Target("id", [5, 7])}, 1_000)


def test_a_plan_comes_back_as_it_was_written() -> None:
    plan = planned("a", "b")
    assert BatchPlan.from_json(plan.to_json()) == plan
    assert list(plan.starts().values()) == [5, 7]


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"format": 1}', '{"format": 3}', '{"format": 3, "files": 3}', "nonsense"]
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"format 3|no plan|Expecting value"):
        BatchPlan.from_json(text)


def test_marks_and_plans_tell_whose_they_are() -> None:
    for text in (next_to_json(TOPIC), planned("a").to_json(), ""):
        assert is_of_sink(text, TOPIC)
    for text in (next_to_json(None), next_to_json("other")):
        assert not is_of_sink(text, TOPIC)
    with pytest.raises(ValueError, match="format 3"):
        is_of_sink('{"format": 1}', TOPIC)


def test_a_name_is_handed_out_once() -> None:
    """First new ids, then their next epochs; another cluster has other ids, and an id has a last epoch."""
    ids = itertools.count(100)

    def new(count: int) -> list[Identity]:
        return [Identity(next(ids), 0) for _ in range(count)]

    names = ProducerNames()
    assert names.take(2, "c", new) == [(100, 0), (101, 0)]
    assert names.take(1, "c", new) == [(100, 1)]
    assert names.take(3, "c", new) == [(101, 1), (100, 2), (102, 0)]
    assert names.take(0, "c", new) == []
    assert names.take(1, "other", new) == [(103, 0)]
    for epoch in range(1, MAX_EPOCH + 1):
        assert names.take(1, "other", new) == [(103, epoch)]
    assert names.take(1, "other", new) == [(104, 0)]


@given(st.data())
def test_rows_that_are_written_are_left_out_by_number_however_they_come(data: st.DataObject) -> None:
    rows = [
        {"key": key, "partition": partition}
        for key, partition in data.draw(
            st.lists(st.tuples(st.none() | st.binary(max_size=1), st.none() | st.integers(0, 1)), max_size=30)
        )
    ]
    plan = planned("a")
    schema = pa.schema([("key", pa.binary()), ("partition", pa.int64())])
    everything, partitions = Numbering(plan, {}).left_of(TOPIC, pa.RecordBatch.from_pylist(rows, schema))
    assert everything.to_pylist() == rows
    written = {
        TopicPartition(TOPIC, PartitionIndex(index)): data.draw(st.integers(0, partitions.tolist().count(index)))
        for index in range(2)
    }
    numbering = Numbering(plan, written)
    left: list[tuple[object, int]] = []
    rest = rows
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        kept, chosen = numbering.left_of(TOPIC, pa.RecordBatch.from_pylist(rest[:size], schema))
        left += zip(kept.to_pylist(), chosen.tolist(), strict=True)
        rest = rest[size:]
    for index in range(2):
        ours = [row for row, partition in zip(rows, partitions, strict=True) if partition == index]
        kept_ones = [row for row, partition in left if partition == index]
        assert kept_ones == ours[written[TopicPartition(TOPIC, PartitionIndex(index))] :]


def test_a_partition_that_was_not_planned_is_refused() -> None:
    rows = pa.RecordBatch.from_pydict({"partition": pa.array([0, 2])})
    with pytest.raises(InvalidPartitions, match="t has partitions 0 to 1, not 2"):
        Numbering(planned("a"), {}).left_of(TOPIC, rows)
