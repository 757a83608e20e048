"""What `raylog topics reassign` makes of its options and files, and what it refuses before anything is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest

from raylog.client.cli.topics import reassign_plan as plan
from raylog.client.cli.topics.reassign_plan import Move
from raylog.client.results import PartitionDescription, PartitionReassignment, TopicDescription
from raylog.protocol.errors import InvalidReplicaAssignment, InvalidRequest, RaylogError, UnknownTopicOrPartition
from raylog.protocol.ids import BrokerId, LeaderEpoch, PartitionIndex, TopicId, TopicName, TopicPartition

ALIVE = (1, 2, 3)


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, brokers))


def tp(partition: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))


def topic_of(*replicas: Sequence[int]) -> TopicDescription:
    return TopicDescription(
        TopicName("t"),
        TopicId(UUID(int=1)),
        tuple(
            PartitionDescription(PartitionIndex(index), BrokerId(each[0]), LeaderEpoch(0), ids(*each), ids(*each))
            for index, each in enumerate(replicas)
        ),
    )


def moves(
    wanted: Mapping[TopicPartition, tuple[BrokerId, ...]],
    *replicas: Sequence[int],
    under_way: Mapping[TopicPartition, PartitionReassignment] | None = None,
) -> list[Move]:
    return plan.moves_of(wanted, {"t": topic_of(*replicas)}, under_way or {}, ALIVE)


def test_all_partitions_of_a_topic_begin_with_another_broker_each() -> None:
    topic = topic_of([1], [1], [1], [1])
    assert plan.wanted_of_topic(topic, None, ids(2, 3)) == {
        tp(0): (2, 3), tp(1): (3, 2), tp(2): (2, 3), tp(3): (3, 2),
    }  # fmt: skip


def test_partitions_that_are_named_get_what_is_said() -> None:
    assert plan.wanted_of_topic(topic_of([1], [1]), [1], ids(2, 3)) == {tp(1): (2, 3)}


def test_a_file_of_kafkas_tool() -> None:
    text = """{"version": 1, "partitions": [
        {"topic": "t", "partition": 1, "replicas": [2, 3], "log_dirs": ["any", "any"]},
        {"topic": "u", "partition": 0, "replicas": [1]}]}"""
    assert plan.wanted_of_file(text.encode(), "f") == {tp(1): (2, 3), tp(0, "u"): (1,)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "f is not a file of moves: it is no JSON"),
        ("null", "it is null, no object"),
        ("[]", r"it is \[\], no object"),
        ("{}", "partitions is null, no list"),
        ('{"partitions": 1}', "partitions is 1, no list"),
        ('{"partitions": {"t": 1}}', 'partitions is {"t": 1}, no list'),
        ('{"partitions": ["t"]}', 'one of partitions is "t", no object'),
        ('{"partitions": [{"partition": 0, "replicas": [1]}]}', "topic is null, no text"),
        ('{"partitions": [{"topic": 7, "partition": 0, "replicas": [1]}]}', "topic is 7, no text"),
        ('{"partitions": [{"topic": "t", "partition": "0", "replicas": [1]}]}', 'partition is "0", no whole number'),
        ('{"partitions": [{"topic": "t", "partition": 1.5, "replicas": [1]}]}', r"partition is 1\.5, no whole number"),
        ('{"partitions": [{"topic": "t", "partition": true, "replicas": [1]}]}', "partition is true, no whole number"),
        ('{"partitions": [{"topic": "t", "partition": 0}]}', "replicas is null, no list"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": "12"}]}', 'replicas is "12", no list'),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": ["x"]}]}', 'a replica is "x", no whole number'),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": 7}]}', "log_dirs is 7, no list"),
        ('{"partitions": []}', "f names no partition"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/a"]}]}', "log_dirs"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}, '
            '{"topic": "t", "partition": 0, "replicas": [2]}]}',
            "t-0 is named twice",
        ),
    ],
)
def test_a_file_that_says_nothing_clear(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        plan.wanted_of_file(text.encode(), "f")


def test_file_that_is_no_text_is_told() -> None:
    with pytest.raises(InvalidRequest, match="f is not a file of moves: it is no UTF-8; it must be like"):
        plan.wanted_of_file(b"\xff{}", "f")


def test_what_is_there_or_on_its_way_is_left_out() -> None:
    under_way = {
        tp(1): PartitionReassignment(ids(3, 1), adding_replicas=ids(3), removing_replicas=ids(1)),
        tp(2): PartitionReassignment(ids(3, 1), adding_replicas=ids(3), removing_replicas=ids(1)),
    }
    found = moves({tp(0): ids(1), tp(1): ids(3), tp(2): ids(2)}, [1], [3, 1], [3, 1], under_way=under_way)
    assert found == [Move(tp(2), ids(1), ids(2))]


def test_another_order_is_a_move_that_copies_nothing() -> None:
    [move] = moves({tp(0): ids(2, 1)}, [1, 2])
    assert move.adding == ()
    assert plan.throttled_replicas([move]) == {}


def test_a_replica_whose_broker_is_down_may_stay() -> None:
    assert moves({tp(0): ids(7, 2)}, [7, 1]) == [Move(tp(0), ids(7, 1), ids(7, 2))]


@pytest.mark.parametrize(
    ("partition", "replicas", "error", "words"),
    [
        (0, (1, 2, 1), InvalidReplicaAssignment, "t-0: broker 1 is named twice"),
        (0, (1, 9), InvalidReplicaAssignment, "t-0: broker 9 is not up; these are: 1, 2, 3"),
        (0, (1, 2, 3, 4), InvalidReplicaAssignment, "t-0: broker 4 is not up"),
        (0, (), InvalidReplicaAssignment, "at least one replica"),
        (1, (1,), UnknownTopicOrPartition, "there is no partition t-1; t has 0 to 0"),
        (-1, (1,), UnknownTopicOrPartition, "there is no partition t--1"),
    ],
)
def test_replicas_that_cannot_be_had(
    partition: int, replicas: tuple[int, ...], error: type[RaylogError], words: str
) -> None:
    with pytest.raises(error, match=words):
        moves({tp(partition): ids(*replicas)}, [1, 2])


def test_who_has_a_partition_sends_slowly_and_who_gets_it_asks_slowly() -> None:
    found = plan.throttled_replicas([Move(tp(0), ids(1, 2), ids(2, 3)), Move(tp(4), ids(1), ids(3, 2))])
    assert found == {
        "t": {
            "leader.replication.throttled.replicas": "0:1,0:2,4:1",
            "follower.replication.throttled.replicas": "0:3,4:3,4:2",
        }
    }
