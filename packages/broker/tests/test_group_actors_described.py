"""Groups of actors as a broker describes them, and ends members of theirs, out of registries that others wrote."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from raylog.broker.groups.actors import describe_actors, remove_actors
from raylog.broker.groups.classic.messages import Leaver
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_model import Registered
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import BadVersion, Op, OpResult
from raylog.protocol.errors import CoordinatorNotAvailable, RaylogError, UnknownMemberId
from raylog.protocol.ids import GroupId, InstanceId, MemberId, PartitionIndex, TimestampMs, TopicName, TopicPartition
from raylog.protocol.wire.consumer_protocol import subscribed_topics

GROUP = GroupId("g")
TOPICS = [TopicName("flights"), TopicName("a" * 60 + "-")]


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("pattern", "topics"), [("fl.*", ["flights"]), ("(a+)+$", []), (r"(a)\1", []), ("(" * 10_000, [])]
)
def test_pattern_of_member_costs_the_broker_milliseconds(pattern: str, topics: list[str]) -> None:
    store = MemoryStore(MemoryTree())
    store.start()
    store.ensure(group_paths.members(GROUP))
    about = group_paths.encode_member(Registered(frozenset(), pattern, "", -1), TimestampMs(0))
    store.create(group_paths.member(GROUP, MemberId("m")), about, ephemeral=True)
    begun = time.thread_time()
    [member] = describe_actors(store, GROUP, TOPICS).members
    assert time.thread_time() - begun < 0.5
    assert sorted(subscribed_topics(member.metadata)) == topics


class Registry(MemoryStore):
    """A static member and a dynamic one, which own a partition each."""

    def __init__(self) -> None:
        super().__init__(MemoryTree())
        self.commits = False
        """They commit all the time."""
        self.start()
        self.ensure(group_paths.members(GROUP))
        self.ensure(group_paths.instances(GROUP))
        for number, (member, instance) in enumerate(((STATIC, INSTANCE), (DYNAMIC, None))):
            about = group_paths.encode_member(Registered(frozenset(TOPICS), None, instance=instance), TimestampMs(0))
            self.create(group_paths.member(GROUP, member), about, ephemeral=True)
            tp = TopicPartition(TOPICS[0], PartitionIndex(number))
            self.create(group_paths.offset(GROUP, tp), b"5", parents=True)
            self.create(group_paths.owner(GROUP, tp), group_paths.encode_owner(member), ephemeral=True, parents=True)
        self.create(group_paths.instance(GROUP, INSTANCE), group_paths.encode_owner(STATIC), ephemeral=True)

    def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        if self.commits:
            raise BadVersion("another version")
        return super().multi(ops)

    @property
    def left(self) -> tuple[list[str], list[str], list[str]]:
        return (
            self.children(group_paths.members(GROUP)),
            self.children(group_paths.instances(GROUP)),
            self.children(group_paths.owners_of_topic(GROUP, TOPICS[0])),
        )


STATIC, DYNAMIC, INSTANCE = MemberId("~i#1"), MemberId("m"), InstanceId("i")


def kinds(results: list[RaylogError | None]) -> list[type[RaylogError] | None]:
    return [None if result is None else type(result) for result in results]


def test_static_member_is_described_with_its_instance() -> None:
    members = describe_actors(Registry(), GROUP, TOPICS).members
    assert {member.member_id: member.instance_id for member in members} == {STATIC: INSTANCE, DYNAMIC: None}


@pytest.mark.parametrize(
    "leaver", [Leaver(MemberId(""), INSTANCE), Leaver(STATIC), Leaver(STATIC, INSTANCE)], ids=["instance", "id", "both"]
)
def test_static_member_is_removed_with_all_that_it_owns(leaver: Leaver) -> None:
    registry = Registry()
    assert remove_actors(registry, GROUP, [leaver]) == [None]
    assert registry.left == ([DYNAMIC], [], ["1"])


def test_removing_members_answers_each() -> None:
    registry = Registry()
    asked = [Leaver(MemberId("")), Leaver(MemberId("x")), Leaver(DYNAMIC, INSTANCE), Leaver(DYNAMIC)]
    assert kinds(remove_actors(registry, GROUP, asked)) == [UnknownMemberId] * 3 + [None]
    assert registry.left == ([STATIC], ["i"], ["0"])


def test_member_that_commits_meanwhile_is_not_removed() -> None:
    registry = Registry()
    registry.commits = True
    assert kinds(remove_actors(registry, GROUP, [Leaver(DYNAMIC)])) == [CoordinatorNotAvailable]
