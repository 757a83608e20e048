"""Groups are listed in a few round trips, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kit.stores import Counting, close_node
from raylog.broker.config import BROKER_SETTINGS
from raylog.broker.config.groups import GroupRules
from raylog.broker.groups.classic.claims import Claim, encode_claim, encode_group
from raylog.broker.groups.classic.stored import StoredGroup, StoredMember
from raylog.broker.groups.coordinator import GroupCoordinator
from raylog.coordination.groups.kinds import GroupKind, settle_kind
from raylog.coordination.groups.offsets import RegistryOffsetStore
from raylog.coordination.host.loops import Loops
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_model import CommittedOffset, Registered, Shares
from raylog.coordination.metadata.model import BrokerInfo, ClusterState
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.unreadable import collecting
from raylog.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    Generation,
    GroupId,
    MemberId,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicName,
    TopicPartition,
)

ME, EPOCH = BrokerId(1), BrokerEpoch(0)
ONE = MemberId("one")
PARTITIONS = tuple(TopicPartition(TopicName("flights"), PartitionIndex(index)) for index in range(20))
MOST_TRIPS = 13
"""What others have changed, and the kinds and claims that this leaves in doubt; names in two places; claims, kinds,
states and nodes of old tools; members, assignments and owners of actors."""


@pytest.fixture
def store() -> Iterator[Counting]:
    with Counting(MemoryTree()) as store:
        yield store


@pytest.fixture
def brokers() -> dict[BrokerId, BrokerInfo]:
    """Those that are known."""
    return {ME: BrokerInfo(ME, EPOCH, ())}


@pytest.fixture
def coordinator(store: Counting, brokers: dict[BrokerId, BrokerInfo]) -> GroupCoordinator:
    """Its threads do not run."""
    return GroupCoordinator(
        ME,
        store,
        epoch=lambda: EPOCH,
        cluster=lambda: ClusterState(brokers=brokers),
        may_act=lambda: True,
        rules=GroupRules(),
        settings=lambda: BROKER_SETTINGS.settings({"broker.id": "1"}),
        loops=Loops(),
    )


def put_clients(store: Counting, group: GroupId, members: int) -> None:
    settle_kind(store, group, GroupKind.CLIENTS)
    about = (None, "client", "/127.0.0.1", 30_000, 60_000, bytes(500), bytes(500))
    those = tuple(StoredMember(MemberId(f"m{index}"), *about) for index in range(members))
    stored = StoredGroup(Generation(1), "consumer", "range", MemberId("m0"), those)
    store.create(group_paths.state(group), encode_group(stored))
    store.create(group_paths.claim(group), encode_claim(Claim(ME, EPOCH)))


def put_actors(store: Counting, group: GroupId, owned: int) -> None:
    settle_kind(store, group, GroupKind.ACTORS)
    node = group_paths.member(group, ONE)
    store.create(
        node, group_paths.encode_member(Registered(frozenset(), None), TimestampMs(1)), ephemeral=True, parents=True
    )
    shares = Shares(Generation(3), {ONE: PARTITIONS})
    store.create(group_paths.assignment(group), group_paths.encode_assignment(shares))
    for tp in PARTITIONS[:owned]:
        store.create(group_paths.owner(group, tp), group_paths.encode_owner(ONE), parents=True)


def put_old(store: Counting, group: GroupId, _: int = 0) -> None:
    store.ensure(group_paths.members(group))


def test_states_are_told_of_groups_of_every_kind(store: Counting, coordinator: GroupCoordinator) -> None:
    put_clients(store, GroupId("clients"), 2)
    put_clients(store, GroupId("clients-gone"), 0)
    put_actors(store, GroupId("actors"), len(PARTITIONS))
    put_actors(store, GroupId("actors-claim"), 3)
    settle_kind(store, GroupId("actors-gone"), GroupKind.ACTORS)
    put_old(store, GroupId("old"))
    put_actors(store, GroupId("odd"), 0)
    store.set(group_paths.assignment(GroupId("odd")), b"no JSON")
    assert {each.group: each.state for each in coordinator.list_groups()} == {
        "clients": "Stable",
        "clients-gone": "Empty",
        "actors": "Stable",
        "actors-claim": "PreparingRebalance",
        "actors-gone": "Empty",
        "old": "Empty",
        "odd": "Unknown",
    }


CLOSED = {
    "claim": group_paths.claim,
    "kind": group_paths.group,
    "state": group_paths.state,
    "members": group_paths.members,
    "assignment": group_paths.assignment,
    "consumer": group_paths.consumer,
}


NEEDED = {
    put_clients: {"kind", "state"},
    put_actors: {"kind", "members", "assignment"},
    put_old: {"kind", "members"},
}
"""Without which nobody knows a group's state."""


@pytest.mark.parametrize("node", CLOSED)
@pytest.mark.parametrize("put", NEEDED)
def test_closed_node_of_one_group_takes_no_other_with_it(
    store: Counting, coordinator: GroupCoordinator, put: Callable[..., None], node: str
) -> None:
    closed = GroupId("closed")
    for group in (closed, GroupId("open")):
        put(store, group, 1)
    expected = {each.group: each.state for each in coordinator.list_groups()}
    close_node(store, CLOSED[node](closed))
    with collecting():
        listed = {each.group: each.state for each in coordinator.list_groups()}
    assert listed[GroupId("open")] == expected[GroupId("open")]
    assert listed[closed] == ("Unknown" if node in NEEDED[put] else expected[closed])


def test_group_that_cannot_be_read_is_told_once(
    store: Counting, coordinator: GroupCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    put_clients(store, GroupId("listed often"), 1)
    store.set(group_paths.state(GroupId("listed often")), b"no JSON")
    for _ in range(3):
        assert [each.state for each in coordinator.list_groups()] == ["Unknown"]
    assert len(caplog.records) == 1


def test_foreign_nodes_among_members_are_none(store: Counting, coordinator: GroupCoordinator) -> None:
    """For members of the group, for those who list it and for those who describe it alike."""
    alone, beside = GroupId("alone"), GroupId("beside")
    settle_kind(store, alone, GroupKind.ACTORS)
    put_actors(store, beside, len(PARTITIONS))
    for group in (alone, beside):
        store.create(f"{group_paths.members(group)}/foreign", b"no JSON")
        store.create(f"{group_paths.members(group)}/%", b"{}")
        readable = group_paths.encode_member(Registered(frozenset(), None), TimestampMs(1))
        store.create(f"{group_paths.members(group)}/persistent", readable)
    assert {each.group: each.state for each in coordinator.list_groups()} == {alone: "Empty", beside: "Stable"}
    assert coordinator.describe(alone).state == "Empty"
    described = coordinator.describe(beside)
    assert (described.state, [each.member_id for each in described.members]) == ("Stable", [ONE])
    newcomer = group_paths.member(beside, MemberId("two"))
    store.create(newcomer, readable, ephemeral=True)
    [_, listed] = coordinator.list_groups()
    assert listed.state == coordinator.describe(beside).state == "PreparingRebalance"


def test_groups_of_other_brokers_are_not_listed(
    store: Counting, coordinator: GroupCoordinator, brokers: dict[BrokerId, BrokerInfo]
) -> None:
    put_clients(store, GroupId("theirs"), 2)
    store.set(group_paths.claim(GroupId("theirs")), encode_claim(Claim(BrokerId(2), BrokerEpoch(9))))
    assert [each.group for each in coordinator.list_groups()] == ["theirs"], "there is no broker 2 any more"
    brokers[BrokerId(2)] = BrokerInfo(BrokerId(2), BrokerEpoch(9), ())
    assert coordinator.list_groups() == []


@pytest.mark.parametrize("groups", [8, 1_000])
def test_list_takes_few_round_trips(store: Counting, coordinator: GroupCoordinator, groups: int) -> None:
    """None of them for offsets, or for what members wrote for each other in a group that is held."""
    offsets = RegistryOffsetStore(store)
    for number in range(groups):
        group = GroupId(f"g{number}")
        match number % 4:
            case 0:
                put_clients(store, group, 2)
                coordinator._holder.adopt(group)
            case 1:
                put_clients(store, group, 0)
            case 2:
                put_actors(store, group, len(PARTITIONS))
            case _:
                put_old(store, group)
        if number < 8:
            offsets.write(group, {tp: CommittedOffset(Offset(5)) for tp in PARTITIONS}, [])
    before = store.trips, store.asked, store.bytes
    assert len(coordinator.list_groups()) == groups
    assert store.trips - before[0] <= MOST_TRIPS
    assert store.asked - before[1] <= 5 * groups
    assert store.bytes - before[2] <= 400 * groups
