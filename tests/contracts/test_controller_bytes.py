"""The controller's largest writes, over both stores: every multi is one that ZooKeeper takes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.stores import OpenStore
from raylog.coordination.control import reassignment
from raylog.coordination.control.leadership import Change
from raylog.coordination.controller.controller import Controller
from raylog.coordination.controller.events import (
    Elected,
    NewReplicas,
    ReassignmentRequested,
    Reply,
    Tick,
    Write,
    Written,
)
from raylog.coordination.controller.topics import MAX_PARTITIONS, check_bytes
from raylog.coordination.controller.writes import (
    MAX_MOVING_TOPIC_BYTES,
    MAX_TOPIC_BYTES,
    Multi,
    Writes,
    topic_bytes,
)
from raylog.coordination.membership.registration import ensure_cluster
from raylog.coordination.metadata import paths
from raylog.coordination.metadata.configs import MAX_OVERRIDES_BYTES, check_overrides_size
from raylog.coordination.metadata.model import BrokerInfo, ClusterState, PartitionState, TopicState
from raylog.coordination.store.port import MAX_WRITE_BYTES, Create, size_of
from raylog.protocol.errors import InvalidConfig, InvalidPartitions, InvalidReplicaAssignment
from raylog.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    MonotonicMs,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)

NAME = TopicName("t" * 249)
BROKERS = tuple(BrokerId(n) for n in range(999_900, 1_000_000))
STATE = ClusterState(brokers={b: BrokerInfo(b, BrokerEpoch(0), ()) for b in BROKERS})
JUTE_MAXBUFFER = 0xFFFFF
"""ZooKeeper's own limit of one request, unless it is told another."""


def partition(index: int, factor: int) -> PartitionState:
    replicas = tuple(BROKERS[(index + n) % len(BROKERS)] for n in range(factor))
    epochs = dict.fromkeys(replicas, BrokerEpoch(0))
    return PartitionState(replicas, replicas[0], isr=replicas, incarnations=epochs, version=0)


def topic_of(partitions: int, factor: int) -> TopicState:
    made = tuple(partition(index, factor) for index in range(partitions))
    return TopicState(NAME, TopicId(UUID(int=2**128 - 1)), made)


def largest(factor: int) -> TopicState:
    """The topic with the most partitions, and the largest overrides, that may be made."""
    all_of_them = topic_of(MAX_PARTITIONS, factor)
    each = topic_bytes(all_of_them) // MAX_PARTITIONS + 1
    made = all_of_them.partitions[: MAX_TOPIC_BYTES // each]
    topic = replace(all_of_them, partitions=made, configs={"x": "y" * (MAX_OVERRIDES_BYTES - 100)})
    check_bytes(topic)
    return topic


def moved(topic: TopicState) -> list[Change]:
    """Each partition to other brokers, as many as are allowed at once."""
    room, changes = MAX_MOVING_TOPIC_BYTES - topic_bytes(topic), []
    for index, old in enumerate(topic.partitions):
        wanted = tuple(BROKERS[(index + 50 + n) % len(BROKERS)] for n in range(len(old.replicas)))
        new = reassignment.begun(old, wanted)
        # what it may be in the end: all of them in sync, and those that left eligible
        new = replace(new, isr=new.replicas, incarnations=dict.fromkeys(new.replicas, BrokerEpoch(0)))
        change = Change(TopicPartition(NAME, PartitionIndex(index)), old, new)
        grown = replace(topic, partitions=(new,))
        growth = topic_bytes(grown) - topic_bytes(replace(topic, partitions=(old,))) + 20
        if growth > room:
            break
        room -= growth
        changes.append(change)
    return changes


def bytes_of(multi: Multi) -> int:
    return sum(map(size_of, multi))


@cache
def largest_multis(factor: int) -> tuple[Multi, ...]:
    """Of the largest topic that may be made: its creation, and the last step of moving as much of it as is allowed."""
    writes, topic = Writes(0), largest(factor)
    moves = moved(topic)
    assert len(moves) >= len(topic.partitions) // 4, "enough to be worth asking for"
    creation, moving = writes.creation(topic, STATE), writes.reassignment(topic, moves, STATE)
    most = tuple((*writes.mandate(), *max(multis, key=bytes_of)) for multis in (creation, moving))
    bytes_of_each = [bytes_of(multi) for multi in most]
    print(f"factor {factor}: {len(topic.partitions)} partitions, {len(moves)} moved at once, {bytes_of_each} bytes")
    return most


@pytest.mark.system
@pytest.mark.parametrize("factor", [3, 20])
def test_the_largest_multis_are_taken(open_store: OpenStore, factor: int) -> None:
    store = open_store()
    ensure_cluster(store)
    for multi in largest_multis(factor):
        assert bytes_of(multi) <= MAX_WRITE_BYTES < JUTE_MAXBUFFER
        for op in multi:
            if not isinstance(op, Create):
                store.ensure(op.path)
        store.multi(multi)


@given(st.lists(st.lists(st.integers(0, 2**31 - 1).map(BrokerId), min_size=1, max_size=6, unique=True), max_size=30))
def test_a_topics_bytes_are_an_upper_bound(replicas: list[list[BrokerId]]) -> None:
    partitions = tuple(
        PartitionState(tuple(each), adding=tuple(each[:2]), removing=tuple(each[2:])) for each in replicas
    )
    topic = TopicState(NAME, TopicId(UUID(int=1)), partitions)
    written = len(paths.encode_topic(paths.TopicAssignment.of(topic))) + len(paths.topic(NAME))
    assert written <= topic_bytes(topic) <= written + 1_000


def test_a_topic_that_the_store_would_not_take_is_refused() -> None:
    with pytest.raises(InvalidPartitions, match=r"10000 partitions with their replicas take \d+ bytes"):
        check_bytes(topic_of(MAX_PARTITIONS, 6))
    with pytest.raises(InvalidConfig, match="overrides take"):
        check_overrides_size({"x": "y" * MAX_OVERRIDES_BYTES})


def test_no_more_partitions_are_reassigned_at_once_than_the_node_can_hold() -> None:
    """The others are refused, and can be asked for again later; they were written in a multi that no store takes."""
    topic = topic_of(6_000, 4)
    controller = Controller()
    state = replace(STATE, topics={NAME: topic})
    controller.handle(Elected(BROKERS[0], ControllerEpoch(1), 1, state, ids={topic.id: NAME}))
    tps = [tp for tp, _ in topic.topic_partitions()]
    wanted = tuple(NewReplicas(tp, tuple(BROKERS[(tp.partition + 50 + n) % 100] for n in range(4))) for tp in tps)
    effects = controller.handle(ReassignmentRequested("token", wanted, MonotonicMs(10)))
    [write] = [effect for effect in effects if isinstance(effect, Write)]
    assert max(sum(map(size_of, multi)) for multi in write.multis) <= MAX_WRITE_BYTES
    controller.handle(Written(write.token))
    [reply] = [effect for effect in controller.handle(Tick(MonotonicMs(10))) if isinstance(effect, Reply)]
    refused = [result for result in reply.results if isinstance(result, InvalidReplicaAssignment)]
    moved_at_once = sum(bool(p.adding) for p in controller.state.topics[NAME].partitions)
    assert 1_000 < moved_at_once == len(tps) - len(refused) < len(tps)
