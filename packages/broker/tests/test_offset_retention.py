"""Committed offsets that nobody needs: forgotten late rather than early, and never one that is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from kit.machine import scaled
from kit.node import registered_store
from kit.stores import Counting, Interrupted
from kit.topics import drop_topic, put_topic
from raylog.broker.config import BROKER_SETTINGS
from raylog.broker.config.groups import GroupRules
from raylog.broker.groups.classic.messages import Identity, Join, Joined, Leaver, MemberIdIs, Protocol, Sync
from raylog.broker.groups.coordinator import GroupCoordinator
from raylog.broker.groups.offsets.retention import LOOKS, OffsetRetention, RetainedGroups
from raylog.coordination.groups.kinds import GroupKind, settle_kind
from raylog.coordination.groups.nodes import group_ids
from raylog.coordination.groups.offsets import CommittedOffset, RegistryOffsetStore
from raylog.coordination.host.loops import Loops
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.model import BrokerInfo, ClusterState, Endpoint, TopicState
from raylog.coordination.metadata.topic_ids import TopicGone
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.protocol.errors import CoordinatorNotAvailable, NonEmptyGroup, NotCoordinator, RaylogError
from raylog.protocol.ids import (
    NO_GENERATION,
    NO_MEMBER,
    NO_TIMESTAMP,
    BrokerEpoch,
    BrokerId,
    GroupId,
    MemberId,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicName,
    TopicPartition,
)
from raylog.protocol.wire import consumer_protocol

GROUP = GroupId("readers")
FLIGHTS, OLD = TopicName("flights"), TopicName("old")
RETENTION_MS = 1_000
LISTED_TRIPS = 12
"""To list the groups, however many."""
GROUP_TRIPS = 20
"""To forget what one group has of a topic."""
NOBODY = Identity(NO_MEMBER, NO_GENERATION)


def tp(topic: TopicName = FLIGHTS, index: int = 0) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(index))


def at(offset: int, committed_ms: int = 0) -> CommittedOffset:
    return CommittedOffset(Offset(offset), committed_ms=TimestampMs(committed_ms))


@dataclass
class World:
    """A broker that coordinates all groups, and the time."""

    tree: MemoryTree
    store: Counting
    state: ClusterState
    may_act: bool = True

    def __post_init__(self) -> None:
        settings = BROKER_SETTINGS.settings({"raylog.offsets.commit.linger.ms": "0"})
        self.coordinator = GroupCoordinator(
            BrokerId(1),
            self.store,
            epoch=lambda: BrokerEpoch(1),
            cluster=lambda: self.state,
            may_act=lambda: self.may_act,
            rules=GroupRules(min_session_timeout_ms=1, initial_rebalance_delay_ms=0),
            settings=lambda: settings,
            loops=Loops(),
        )
        self.retention = self.new_retention()
        self.offsets = RegistryOffsetStore(self.store)

    def new_retention(self, groups: RetainedGroups | None = None) -> OffsetRetention:
        """As after a start of the broker."""
        return OffsetRetention(
            groups or self.coordinator,
            retention_ms=lambda: RETENTION_MS,
            state=lambda: self.state,
        )

    def check(self, *times_ms: int) -> None:
        for now_ms in times_ms:
            self.retention.check(TimestampMs(now_ms))

    def commit(self, offsets: dict[TopicPartition, CommittedOffset], who: Identity = NOBODY) -> None:
        topics = {name: self.state.topics[name].id for name in {tp.topic for tp in offsets}}
        results = self.coordinator.commit_offsets(GROUP, who, offsets, topics).result(scaled(10))
        assert results == dict.fromkeys(offsets)

    def delete_topic(self, name: TopicName) -> None:
        drop_topic(self.store, name)
        self.state = self.state.without_topics(name)

    def make_topic(self, name: TopicName) -> None:
        self.state = self.state.with_topics(TopicState(name, put_topic(self.store, name), ()))

    def wishes(self, *topics: TopicName) -> Join:
        wants = (Protocol("range", consumer_protocol.encode_subscription(topics)),)
        return Join(NO_MEMBER, None, "client", "/host", 60_000, 60_000, "consumer", wants, needs_id=False)

    def join(self, *topics: TopicName) -> Identity:
        """The group's only member, which reads these."""
        joined: Future[Joined | MemberIdIs] = self.coordinator.join(GROUP, self.wishes(*topics))
        member = joined.result(scaled(10))
        assert isinstance(member, Joined)
        who = Identity(member.member_id, member.generation)
        self.coordinator.sync(GROUP, Sync(who, ((member.member_id, b""),))).result(scaled(10))
        return who


class Asks:
    """Counts what is asked; what is asked of one group may fail."""

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups
        self.asked = Counter[str]()
        self.fails: RaylogError | None = None

    def __getattr__(self, name: str) -> Any:
        def ask(*arguments: Any) -> Any:
            self.asked[name] += 1
            if self.fails is not None and arguments and isinstance(arguments[0], str):
                raise self.fails
            return getattr(self._groups, name)(*arguments)

        return ask


def counted(world: World) -> Asks:
    """What retention asks the groups from now on."""
    asks = Asks(world.coordinator)
    world.retention = world.new_retention(cast(RetainedGroups, asks))
    return asks


@pytest.fixture
def world() -> Iterator[World]:
    tree = MemoryTree()
    store = registered_store(BrokerId(1), BrokerEpoch(1), tree)
    broker = BrokerInfo(BrokerId(1), BrokerEpoch(1), (Endpoint("PLAINTEXT", "h", 1),))
    state = replace(ClusterState("test"), brokers={BrokerId(1): broker})
    world = World(tree, store, state)
    world.make_topic(FLIGHTS)
    world.make_topic(OLD)
    world.retention.forget_deleted_topics()
    world.coordinator.start()
    yield world
    world.coordinator.stop()
    store.close()


def test_offsets_of_a_group_without_members_go_after_the_retention_and_the_group_with_them(world: World) -> None:
    world.commit({tp(): at(5)})
    world.check(10_000, 10_000 + RETENTION_MS - 1)
    assert world.offsets.fetch(GROUP) == {tp(): at(5)}
    world.check(10_000 + RETENTION_MS)
    assert world.offsets.fetch(GROUP) == {}
    assert group_ids(world.store) == []


def test_a_commit_prolongs_the_life_of_its_offset_alone(world: World) -> None:
    world.commit({tp(): at(5), tp(OLD): at(7)})
    world.check(0)
    world.commit({tp(): at(6, committed_ms=100)})
    world.check(RETENTION_MS - 1, RETENTION_MS)
    assert world.offsets.fetch(GROUP) == {tp(): at(6, committed_ms=100)}
    assert group_ids(world.store) == [GROUP]
    world.check(RETENTION_MS + 100)
    assert world.offsets.fetch(GROUP) == {}


def test_what_members_read_stays_and_what_they_gave_up_goes(world: World) -> None:
    who = world.join(FLIGHTS)
    world.commit({tp(): at(5), tp(OLD): at(7)}, who)
    world.check(0, RETENTION_MS, 10 * RETENTION_MS)
    assert world.offsets.fetch(GROUP) == {tp(): at(5)}
    world.coordinator.leave(GROUP, [Leaver(who.member_id)])
    world.check(11 * RETENTION_MS)
    assert world.offsets.fetch(GROUP) == {tp(): at(5)}, "it counts from when the group was found without members"
    world.check(12 * RETENTION_MS)
    assert world.offsets.fetch(GROUP) == {}
    assert group_ids(world.store) == []


def test_a_member_that_comes_back_in_time_begins_the_wait_anew(world: World) -> None:
    """Though no check sees it."""
    world.commit({tp(): at(5)})
    world.check(0)
    who = world.join(FLIGHTS)
    world.coordinator.leave(GROUP, [Leaver(who.member_id)])
    world.check(RETENTION_MS - 1, RETENTION_MS, 2 * RETENTION_MS - 2)
    assert world.offsets.fetch(GROUP) == {tp(): at(5)}
    world.check(2 * RETENTION_MS - 1)
    assert world.offsets.fetch(GROUP) == {}


def test_time_counts_on_when_brokers_start_again(world: World) -> None:
    world.commit({tp(): at(5)})
    for now_ms in range(0, RETENTION_MS + 1, RETENTION_MS // 4):
        assert world.offsets.fetch(GROUP) == {tp(): at(5)}
        world.retention = world.new_retention()
        world.check(now_ms)
    assert world.offsets.fetch(GROUP) == {}


def test_empty_group_without_offsets_goes_with_the_next_check(world: World) -> None:
    who = world.join(FLIGHTS)
    world.check(0)
    assert group_ids(world.store) == [GROUP]
    world.coordinator.leave(GROUP, [Leaver(who.member_id)])
    settle_kind(world.store, GroupId("actors"), GroupKind.ACTORS)
    world.check(1)
    assert group_ids(world.store) == []
    assert world.store.children(group_paths.EMPTY_GROUPS) == []


def test_empty_group_stays_while_an_id_is_given_out(world: World) -> None:
    world.coordinator.join(GROUP, replace(world.wishes(FLIGHTS), needs_id=True))
    world.check(0)
    assert group_ids(world.store) == [GROUP]


def test_offsets_of_actors_and_of_old_tools_go_too_unless_somebody_is_registered(world: World) -> None:
    for name in ("actors", "empty"):
        settle_kind(world.store, GroupId(name), GroupKind.ACTORS)
        world.offsets.write(GroupId(name), {tp(): at(5)}, [])
    member = group_paths.Registered(frozenset({FLIGHTS}), None)
    node = group_paths.member(GroupId("actors"), MemberId("m"))
    world.store.create(node, group_paths.encode_member(member, 0), ephemeral=True)  # type: ignore[arg-type]
    world.store.create(group_paths.offset(GroupId("old-tool"), tp()), b"3", parents=True)
    world.check(0, RETENTION_MS)
    assert group_ids(world.store) == ["actors"]
    assert world.offsets.fetch(GroupId("actors")) == {tp(): at(5)}


def test_without_the_right_to_act_nothing_is_forgotten_and_the_time_counts_on(world: World) -> None:
    world.commit({tp(): at(5)})
    world.check(0)
    world.may_act = False
    with pytest.raises(NotCoordinator):
        world.check(RETENTION_MS)
    assert world.offsets.fetch(GROUP) == {tp(): at(5)}
    world.may_act = True
    world.check(RETENTION_MS)
    assert world.offsets.fetch(GROUP) == {}


def test_offsets_of_a_deleted_topic_go_at_once_also_where_members_read_it(world: World) -> None:
    who = world.join(FLIGHTS, OLD)
    world.commit({tp(): at(5), tp(OLD): at(7)}, who)
    world.retention.forget_deleted_topics()
    world.delete_topic(OLD)
    world.may_act = False
    with pytest.raises(NotCoordinator):
        world.retention.forget_deleted_topics()
    world.may_act = True
    world.retention.forget_deleted_topics()
    assert world.offsets.partitions(GROUP) == [tp()]
    world.commit({tp(): at(6)}, who)


def test_a_topic_made_anew_under_the_same_name_is_another_one(world: World) -> None:
    world.commit({tp(): at(5), tp(OLD): at(7)})
    world.delete_topic(OLD)
    world.make_topic(OLD)
    world.retention.forget_deleted_topics()
    assert world.offsets.partitions(GROUP) == [tp()]
    world.commit({tp(OLD): at(1)})
    world.retention.forget_deleted_topics()
    assert world.offsets.fetch(GROUP, [tp(OLD)]) == {tp(OLD): at(1)}


def test_a_group_that_cannot_be_read_holds_up_no_other_and_costs_none_what_it_commits_later(world: World) -> None:
    odd = group_paths.offset(GroupId("odd"), tp(OLD))
    world.commit({tp(OLD): at(7)})
    world.store.create(odd, b"no number", parents=True)
    world.delete_topic(OLD)
    world.make_topic(OLD)
    world.retention.forget_deleted_topics()
    assert world.offsets.partitions(GROUP) == []
    world.commit({tp(OLD): at(1)})
    world.store.set(odd, b"7", version=-1)
    world.delete_topic(FLIGHTS)
    world.retention.forget_deleted_topics()
    assert world.offsets.fetch(GROUP) == {tp(OLD): at(1)}
    of_old_tool = CommittedOffset(Offset(7))  # for the topic that is there
    assert world.offsets.fetch(GroupId("odd")) == {tp(OLD): of_old_tool}
    world.delete_topic(OLD)
    world.retention.forget_deleted_topics()
    assert world.offsets.partitions(GroupId("odd")) == []


def test_only_what_the_store_did_not_answer_is_tried_again_each_second(world: World) -> None:
    """Nothing is listed for it, and a group that is unreadable waits for the next check."""
    world.commit({tp(): at(5), tp(OLD): at(7)})
    odd = GroupId("odd")
    settle_kind(world.store, odd, GroupKind.CLIENTS)
    world.offsets.write(odd, {tp(OLD): at(1)}, [])
    world.store.set(group_paths.group(odd), b"no kind")
    asks = counted(world)
    world.delete_topic(OLD)
    asks.fails = CoordinatorNotAvailable("the store is away")
    for _ in range(3):
        world.retention.forget_deleted_topics()
    assert asks.asked == {"groups_with": 1, "forget_deleted_topics": 2 + 2 + 2}
    asks.fails = None
    for _ in range(3):
        world.retention.forget_deleted_topics()
    assert asks.asked == {"groups_with": 2, "forget_deleted_topics": 8}
    assert world.offsets.partitions(GROUP) == [tp()]
    assert world.offsets.partitions(odd) == [tp(OLD)]


def test_group_that_moved_is_not_tried_again_each_second(world: World) -> None:
    world.commit({tp(OLD): at(5)})
    asks = counted(world)
    world.delete_topic(OLD)
    asks.fails = NotCoordinator("another broker has it")
    for _ in range(3):
        world.retention.forget_deleted_topics()
    assert asks.asked == {"groups_with": 1, "forget_deleted_topics": 1}


def test_deleted_topic_costs_round_trips_for_groups_that_read_it_alone(world: World) -> None:
    """Of a thousand groups, whose coordinators' locks may be taken, three have committed for it, and one owns some."""
    groups = [GroupId(f"group {number}") for number in range(1_000)]
    for group in groups:
        settle_kind(world.store, group, GroupKind.CLIENTS)
        world.offsets.write(group, {tp(): at(1)}, [])
    for group in groups[:3]:
        world.offsets.write(group, {tp(OLD): at(1)}, [])
    world.store.create(group_paths.owners_of_topic(groups[3], OLD), parents=True)
    asks = counted(world)
    world.delete_topic(OLD)
    world.store.trips = 0
    world.retention.forget_deleted_topics()
    assert asks.asked == {"groups_with": 1, "forget_deleted_topics": 4}
    assert world.store.trips <= LISTED_TRIPS + 1 + 4 * GROUP_TRIPS
    assert [world.offsets.partitions(group) for group in groups] == [[tp()]] * 1_000
    assert world.store.children(group_paths.owners(groups[3])) == []


def test_what_owners_leave_of_a_deleted_topic_goes_without_a_check(world: World) -> None:
    """One owner dies after the topic; a claim of another was under way, and makes nodes before it is refused."""
    settled = settle_kind(world.store, GROUP, GroupKind.ACTORS)
    with Interrupted(world.tree) as dying, Interrupted(world.tree) as late:
        RegistryOffsetStore(dying).claim(GROUP, tp(OLD), MemberId("dying"), [settled.check(GROUP)])

        def deletes() -> None:
            world.delete_topic(OLD)
            world.retention.forget_deleted_topics()

        late.after, late.happens = 1, deletes
        with pytest.raises(TopicGone):
            RegistryOffsetStore(late).claim(GROUP, tp(OLD, 1), MemberId("late"), [settled.check(GROUP)])
        assert world.store.children(group_paths.owners_of_topic(GROUP, OLD)) == ["0"]
    assert world.store.children(group_paths.owners(GROUP)) == ["old"]
    for _ in range(LOOKS[1]):
        world.retention.forget_deleted_topics()
    for below in (group_paths.owners(GROUP), group_paths.offsets(GROUP), group_paths.details(GROUP)):
        assert world.store.children(below) == []


def test_topic_that_is_there_again_is_not_looked_for(world: World) -> None:
    world.commit({tp(OLD): at(7)})
    asks = counted(world)
    world.delete_topic(OLD)
    world.retention.forget_deleted_topics()
    world.make_topic(OLD)
    for _ in range(LOOKS[-1] + 1):
        world.retention.forget_deleted_topics()
    assert asks.asked["groups_with"] == 1
    world.delete_topic(OLD)
    for _ in range(LOOKS[-1] + 2):
        world.retention.forget_deleted_topics()
    assert asks.asked["groups_with"] == 1 + len(LOOKS)


def test_a_topic_that_only_we_have_lost_sight_of_keeps_its_offsets(world: World) -> None:
    world.commit({tp(OLD): at(7)})
    world.state = world.state.without_topics(OLD)
    world.retention.forget_deleted_topics()
    assert world.offsets.fetch(GROUP) == {tp(OLD): at(7)}


def test_check_clears_away_what_a_deletion_that_nobody_saw_left(world: World) -> None:
    world.commit({tp(): at(5), tp(OLD): at(7)})
    drop_topic(world.store, OLD)
    world.check(0)
    assert world.offsets.partitions(GROUP) == [tp()]


def register(world: World, group: GroupId, data: bytes | None = None) -> str:
    """A member that is no broker's business; its node."""
    node = group_paths.member(group, MemberId("m"))
    known = group_paths.encode_member(group_paths.Registered(frozenset({FLIGHTS}), None), TimestampMs(0))
    world.store.create(node, known if data is None else data, ephemeral=True, parents=True)
    return node


@pytest.mark.parametrize("data", [None, b'{"version":1,"subscription":{"fl.*":1},"pattern":"black_list"}'])
def test_offsets_of_living_old_consumers_stay(world: World, data: bytes | None) -> None:
    """Nobody but they know what they read."""
    group = GroupId("old-tool")
    member = register(world, group, data)
    world.store.create(group_paths.offset(group, tp()), b"3", parents=True)
    world.check(0, RETENTION_MS, 9 * RETENTION_MS)
    assert world.offsets.fetch(group) == {tp(): at(3, NO_TIMESTAMP)}
    [listed], described = world.coordinator.list_groups(), world.coordinator.describe(group)
    assert listed.state == described.state == "Stable"
    assert [each.member_id for each in described.members] == ["m"]
    with pytest.raises(NonEmptyGroup):
        world.coordinator.delete(group)
    world.store.delete(member)
    world.check(10 * RETENTION_MS, 11 * RETENTION_MS - 1)
    assert world.offsets.partitions(group) == [tp()]
    world.check(11 * RETENTION_MS)
    assert group_ids(world.store) == []


@pytest.mark.parametrize("kind", [None, GroupKind.ACTORS])
def test_number_of_old_tool_stays_for_the_retention_after_its_write(world: World, kind: GroupKind | None) -> None:
    """Of a tool that registers no consumer; it may write the same number again."""
    group = GroupId("old-tool")
    if kind is not None:
        settle_kind(world.store, group, kind)
    node = group_paths.offset(group, tp())
    world.store.create(node, b"3", parents=True)
    for now_ms in range(0, 9 * RETENTION_MS, RETENTION_MS // 2):
        world.store.set(node, b"3")
        world.check(now_ms)
    assert world.offsets.partitions(group) == [tp()]
    world.check(now_ms + RETENTION_MS - 1)
    assert world.offsets.partitions(group) == [tp()]
    world.check(now_ms + RETENTION_MS)
    assert group_ids(world.store) == []


def test_members_that_come_back_as_they_were_end_the_wait(world: World) -> None:
    """Actors whose sessions have ended register as before: the assignment stays, and its generation."""
    group = GroupId("actors")
    settle_kind(world.store, group, GroupKind.ACTORS)
    world.offsets.write(group, {tp(): at(5)}, [])
    world.check(0)
    member = register(world, group)
    world.check(1)
    assert world.store.children(group_paths.EMPTY_GROUPS) == []
    world.store.delete(member)
    world.check(RETENTION_MS, 2 * RETENTION_MS - 1)
    assert world.offsets.fetch(group) == {tp(): at(5)}
    world.check(2 * RETENTION_MS)
    assert group_ids(world.store) == []


def test_pass_that_fails_for_many_groups_is_one_line(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.commit({tp(): at(5), tp(OLD): at(7)})
    for number in range(20):
        settle_kind(world.store, GroupId(f"g{number}"), GroupKind.CLIENTS)
        world.offsets.write(GroupId(f"g{number}"), {tp(OLD): at(1)}, [])
    asks = counted(world)
    world.delete_topic(OLD)
    for error, lines in ((CoordinatorNotAvailable("the store is away"), 1), (NotCoordinator("the lease is lost"), 0)):
        asks.fails = error
        for step in (lambda: world.check(1), world.retention.forget_deleted_topics):
            caplog.clear()
            step()
            warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
            assert len(warnings) == lines, warnings
        assert asks.asked["forget_deleted_topics"] == 2 * 21
        asks.asked.clear()


def test_idle_group_is_told_as_claimed_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Though each check reads it anew."""
    with caplog.at_level("INFO"):
        world.commit({tp(): at(5)})
        for _ in range(3):
            world.check(1)
            world.coordinator._holder.forget_idle()
    assert sum("group claimed" in record.getMessage() for record in caplog.records) == 1
