"""What `raylog groups` makes of its options and of what brokers tell, and what it refuses before anything is done."""

from __future__ import annotations

from uuid import UUID

import pytest

from raylog.client.cli import groups_plan as plan
from raylog.client.cli.groups_plan import Goal, Kind, Log
from raylog.client.results import GroupDescription, MemberDescription, PartitionDescription, TopicDescription
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.protocol.errors import InvalidPartitions, InvalidRequest
from raylog.protocol.ids import (
    BrokerId,
    GroupId,
    LeaderEpoch,
    MemberId,
    Offset,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)

TOPIC = TopicDescription(
    TopicName("t"),
    TopicId(UUID(int=1)),
    tuple(PartitionDescription(PartitionIndex(index), BrokerId(0), LeaderEpoch(0), (), ()) for index in range(3)),
)


def tp(partition: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))


def log(earliest: int, latest: int) -> Log:
    return Log(Offset(earliest), Offset(latest))


def committed(offset: int, metadata: str = "") -> CommittedOffset:
    return CommittedOffset(Offset(offset), metadata=metadata)


def goal(
    *,
    earliest: bool = False,
    latest: bool = False,
    offset: int | None = None,
    timestamp_ms: int | None = None,
    shift: int | None = None,
) -> Goal:
    return plan.goal_of(earliest=earliest, latest=latest, offset=offset, timestamp_ms=timestamp_ms, shift=shift)


def test_one_goal_is_given_and_zero_is_one() -> None:
    assert goal(earliest=True) == Goal(Kind.EARLIEST)
    assert goal(latest=True) == Goal(Kind.LATEST)
    assert goal(offset=0) == Goal(Kind.OFFSET, 0)
    assert goal(timestamp_ms=0) == Goal(Kind.TIMESTAMP, 0)
    assert goal(shift=-5) == Goal(Kind.SHIFT, -5)
    with pytest.raises(InvalidRequest, match="reset to what"):
        goal()
    with pytest.raises(InvalidRequest, match="reset to what"):
        goal(earliest=True, shift=0)


def test_topics_are_named_with_or_without_partitions() -> None:
    assert plan.topics_of(["t", "u:2,0,2"]) == {"t": None, "u": (0, 2)}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["t:"], "is not like NAME"),
        (["t:x"], "is not like NAME"),
        (["t:1:2"], "is not like NAME"),
        ([":1"], "names no topic"),
        (["t:1", "t"], "names a topic twice"),
    ],
)
def test_what_names_no_topic(texts: list[str], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        plan.topics_of(texts)


def test_partitions_are_those_of_the_topic() -> None:
    assert plan.partitions_of(TOPIC, None) == [tp(0), tp(1), tp(2)]
    assert plan.partitions_of(TOPIC, [2]) == [tp(2)]
    for number in (3, -1):
        with pytest.raises(InvalidPartitions, match=f"t has partitions 0 to 2, not {number}"):
            plan.partitions_of(TOPIC, [0, number])


@pytest.mark.parametrize(
    ("goal_", "proposed"),
    [
        (Goal(Kind.EARLIEST), (10, 0)),
        (Goal(Kind.LATEST), (100, 7)),
        (Goal(Kind.OFFSET, 50), (50, 7)),
        (Goal(Kind.OFFSET, 3), (10, 3)),
        (Goal(Kind.TIMESTAMP, 1_000), (20, 7)),
        (Goal(Kind.SHIFT, -2), (40, 3)),
        (Goal(Kind.SHIFT, -40), (10, 0)),
        (Goal(Kind.SHIFT, 1_000), (100, 7)),
        (Goal(Kind.SHIFT, 0), (42, 5)),
    ],
)
def test_a_reset_stays_within_the_log(goal_: Goal, proposed: tuple[int, int]) -> None:
    resets = plan.resets_of(
        goal_,
        {tp(1): log(0, 7), tp(0): log(10, 100)},
        {tp(0): committed(42), tp(1): committed(5)},
        {tp(0): 20, tp(1): -1},
    )
    assert tuple(reset.proposed for reset in resets) == proposed
    assert [reset.tp for reset in resets] == [tp(0), tp(1)]


def test_what_was_asked_for_is_told_from_what_can_be_had() -> None:
    (within,) = plan.resets_of(Goal(Kind.OFFSET, 7), {tp(0): log(0, 7)}, {}, {})
    assert (within.wanted, within.proposed) == (7, 7)
    (beyond,) = plan.resets_of(Goal(Kind.OFFSET, 8), {tp(0): log(0, 7)}, {}, {})
    assert (beyond.wanted, beyond.proposed) == (8, 7)
    assert plan.row_of(beyond) == {
        "topic": "t", "partition": 0, "committed": None, "proposed": 7, "earliest": 0, "latest": 7, "lag": 0,
    }  # fmt: skip


def test_a_partition_without_an_offset_cannot_be_shifted_but_be_given_one() -> None:
    logs = {tp(0): log(0, 7), tp(1): log(0, 7)}
    with pytest.raises(InvalidRequest, match="t-1: nothing is committed"):
        plan.resets_of(Goal(Kind.SHIFT, 1), logs, {tp(0): committed(1)}, {})
    resets = plan.resets_of(Goal(Kind.EARLIEST), logs, {tp(0): committed(1)}, {})
    assert [(reset.committed, reset.proposed) for reset in resets] == [(1, 0), (None, 0)]


def group_of(*members: MemberDescription) -> GroupDescription:
    return GroupDescription(GroupId("g"), "Stable", "consumer", "range", BrokerId(0), members)


def test_a_group_is_shown_with_its_lag_and_who_reads() -> None:
    reader = MemberDescription(MemberId("m"), None, "c", "/10.0.0.1", (TopicName("t"),), (tp(0), tp(2)))
    rows = plan.rows_of(
        group_of(reader),
        {tp(0): committed(4, "mine"), tp(1): committed(2), tp(0, "gone"): committed(1)},
        {tp(0): log(0, 10), tp(1): log(5, 10), tp(2): log(0, 3)},
    )
    assert [(row["topic"], row["partition"], row["committed"], row["lag"], row["member_id"]) for row in rows] == [
        ("gone", 0, 1, None, None),
        ("t", 0, 4, 6, "m"),
        ("t", 1, 2, 8, None),
        ("t", 2, None, None, "m"),
    ]
    assert [row["metadata"] for row in rows] == ["", "mine", "", ""]


def test_positions_outside_the_log_are_told() -> None:
    at = {tp(0): committed(4), tp(1): committed(5), tp(2): committed(11), tp(0, "gone"): committed(0)}
    logs = {tp(0): log(5, 10), tp(1): log(5, 10), tp(2): log(5, 10)}
    first, second = plan.lost_positions(at, logs)
    assert first.startswith("t-0: offset 4 is committed, but the log has 5 to 10")
    assert second.startswith("t-2: offset 11 is committed")
