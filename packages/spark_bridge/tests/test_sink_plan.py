"""What a sink writes down, and how it numbers rows."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.client.producer_state import MAX_EPOCH, Identity
from raylog.protocol.errors import InvalidPartitions
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.spark.sink_batch import Staged, Written, make_plan
from raylog.spark.sink_plan import BatchPlan, Done, Target
from raylog.spark.sink_task import Numbering

TOPIC = TopicName("t")


class Brokers:
    """Topics with fixed ends, and producer ids from 100 on."""

    def __init__(self) -> None:
        self._next = 100

    def targets(self, topics: Collection[str]) -> dict[str, Target]:
        return {topic: Target("id", [5, 7]) for topic in topics}

    def new_producers(self, count: int) -> list[Identity]:
        self._next += count
        return [Identity(number, 0) for number in range(self._next - count, self._next)]

    def written(self, plan: BatchPlan) -> Written:
        raise NotImplementedError


def planned(done: Done | None, *files: str, brokers: Brokers | None = None) -> BatchPlan:
    return make_plan(7, Staged("rows", files, [TOPIC]), brokers or Brokers(), done, 1_000)


def test_plans_and_marks_come_back_as_they_were_written() -> None:
    plan = planned(None, "a", "b")
    assert BatchPlan.from_json(plan.to_json()) == plan
    assert list(plan.starts().values()) == [5, 7]
    done = Done(3, None, (Identity(1, 2), Identity(3, 4)))
    assert Done.from_json(done.to_json()) == done


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"format": 2}', '{"format": 1}', '{"format": 1, "files": 3}', "nonsense"]
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    for kind in (BatchPlan, Done):
        with pytest.raises(ValueError, match=r"format 1|no plan|no mark|Expecting value"):
            kind.from_json(text)


def test_a_batch_takes_the_next_epochs_of_the_producers_before() -> None:
    done = Done(6, TOPIC, (Identity(1, 0), Identity(2, 9)))
    assert planned(done, "b", "a").files == {"a": Identity(1, 1), "b": Identity(2, 10)}
    assert planned(done, "a").files == {"a": Identity(1, 1)}
    assert planned(done, "a", "b", "c").files["c"] == Identity(100, 0)
    assert planned(done).files == {}


def test_producers_whose_epochs_are_used_up_are_replaced() -> None:
    done = Done(6, TOPIC, (Identity(1, MAX_EPOCH), Identity(2, MAX_EPOCH - 1)))
    assert planned(done, "a", "b").files == {"a": Identity(2, MAX_EPOCH), "b": Identity(100, 0)}


@given(st.data())
def test_rows_that_are_written_are_left_out_by_number_however_they_come(data: st.DataObject) -> None:
    rows = [
        {"key": key, "partition": partition}
        for key, partition in data.draw(
            st.lists(st.tuples(st.none() | st.binary(max_size=1), st.none() | st.integers(0, 1)), max_size=30)
        )
    ]
    plan = planned(None, "a")
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
        Numbering(planned(None, "a"), {}).left_of(TOPIC, rows)
