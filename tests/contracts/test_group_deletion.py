"""A group is deleted whole or not at all, wherever the deletion ends and whoever comes meanwhile or stands below it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kit.stores import Contended
from kit.topics import put_topic
from raylog.coordination.groups.kinds import GroupKind, SettledKind, mark_deleted, read_kind, settle_kind, vacancy
from raylog.coordination.groups.nodes import delete_group, deleted_groups, exists
from raylog.coordination.groups.offsets import CommittedOffset, RegistryOffsetStore
from raylog.coordination.groups.registry import GroupRegistry
from raylog.coordination.membership.registration import ensure_cluster
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_events import Look, Looked, Register, Registered
from raylog.coordination.metadata.group_model import Registered as Member
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import BadVersion, MetadataStore, Op, StoreUnavailable
from raylog.coordination.store.trees import nodes_below
from raylog.coordination.store.unreadable import collecting
from raylog.protocol.errors import NonEmptyGroup
from raylog.protocol.ids import GroupId, MemberId, Offset, PartitionIndex, TimestampMs, TopicName, TopicPartition

pytestmark = pytest.mark.system

GROUP = GroupId("team a/billing")
ONE, TWO = MemberId("one"), MemberId("two")
FLIGHTS = TopicName("flights")
COUNT = 600
"""Of offsets, in several writes."""
COMMITTED = {TopicPartition(FLIGHTS, PartitionIndex(index)): CommittedOffset(Offset(index)) for index in range(COUNT)}
MOST_WRITES = 50


class Died(BaseException):
    """The process that deletes the group ends here."""


def make_group(store: MetadataStore, kind: GroupKind | None) -> list[Op]:
    """With offsets and all nodes that it may have; what guards its deletion."""
    guards: list[Op] = []
    if kind is not None:
        guards = [settle_kind(store, GROUP, kind).check(GROUP)]
        assert RegistryOffsetStore(store).write(GROUP, COMMITTED, guards) == {}
    else:  # by a tool of Kafka's ZooKeeper era
        for tp, committed in COMMITTED.items():
            store.create(group_paths.offset(GROUP, tp), group_paths.encode_offset(committed.offset), parents=True)
    store.create(group_paths.owners_of_topic(GROUP, FLIGHTS), parents=True)
    store.create(group_paths.empty(GROUP), parents=True)
    if kind is GroupKind.CLIENTS:
        store.create(group_paths.state(GROUP))
        store.create(group_paths.claim(GROUP))
    if kind is GroupKind.ACTORS:
        store.create(group_paths.share(GROUP, ONE), parents=True)
    return guards


def nothing_is_left(store: MetadataStore) -> bool:
    below = (group_paths.CONSUMERS, group_paths.GROUPS, group_paths.EMPTY_GROUPS)
    return all(store.children(path) == [] for path in below)


def register(store: MetadataStore, member: MemberId = ONE) -> GroupRegistry:
    about = Member(frozenset((FLIGHTS,)), None)
    registry = GroupRegistry(store, GROUP, member, about, Unheard(), lambda: TimestampMs(0))
    assert isinstance(registry.carry_out(Register()), Registered)
    return registry


class Unheard:
    """Where events of watches go."""

    def put(self, item: object, /) -> None: ...


@pytest.fixture
def tree() -> MemoryTree:
    tree = MemoryTree()
    with MemoryStore(tree) as outside:
        ensure_cluster(outside)
        put_topic(outside, "flights", COUNT)
    return tree


def writes(tree: MemoryTree, act: Callable[[Contended, int], bool]) -> int:
    """``act`` with each number of a write, until it answers that there are not so many."""
    for number in range(1, MOST_WRITES):
        with Contended(tree) as store:
            if not act(store, number):
                return number
    raise AssertionError("it never ends")


@pytest.mark.parametrize("is_written", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("joins", [GroupKind.ACTORS, GroupKind.CLIENTS])
@pytest.mark.parametrize("kind", [GroupKind.ACTORS, GroupKind.CLIENTS, None])
def test_deletion_that_ends_at_any_write_is_finished_by_the_next(
    tree: MemoryTree, kind: GroupKind | None, joins: GroupKind, is_written: bool
) -> None:
    def dies(store: Contended, at: int) -> bool:
        with MemoryStore(tree) as outside:
            guards = make_group(outside, kind)

            def happens(number: int) -> None:
                if number == at:
                    if is_written:
                        store.lose_next_answer()
                    else:
                        raise Died
                elif number > at:
                    raise Died

            store.happens = happens
            try:
                delete_group(store, GROUP, guards)
                has_ended = at > store.multis
            except (Died, StoreUnavailable):
                has_ended = False
            offsets = RegistryOffsetStore(outside)
            settled = read_kind(outside, GROUP)
            is_deleted = (settled is None and not exists(outside, GROUP)) or deleted_groups(outside)
            if not is_deleted:
                assert at == 1
                assert offsets.fetch(GROUP) == COMMITTED
                delete_group(outside, GROUP, guards)
            assert settle_kind(outside, GROUP, joins).kind is joins
            assert offsets.fetch(GROUP) == {}
            assert len(nodes_below(outside, group_paths.consumer(GROUP))) == 2
            assert len(nodes_below(outside, group_paths.group(GROUP))) == 1
            delete_group(outside, GROUP, [])
            assert nothing_is_left(outside)
            return not has_ended

    assert writes(tree, dies) > 6


def test_member_that_registers_at_any_write_finds_all_or_nothing(tree: MemoryTree) -> None:
    found = set()

    def joins(store: Contended, at: int) -> bool:
        with MemoryStore(tree) as outside:
            guards = make_group(outside, GroupKind.ACTORS)
            store.happens = lambda number: register(outside) if number == at else None
            try:
                delete_group(store, GROUP, guards)
            except NonEmptyGroup:
                kept = COMMITTED
            else:
                kept = {}
            assert RegistryOffsetStore(outside).fetch(GROUP) == kept
            found.add(bool(kept))
            is_in = outside.children(group_paths.members(GROUP)) == [ONE]
            assert is_in == (store.multis >= at)
            if is_in:
                outside.delete(group_paths.member(GROUP, ONE))
            delete_group(outside, GROUP, [])
            assert nothing_is_left(outside)
            return is_in

    writes(tree, joins)
    assert found == {True, False}


def test_check_of_one_kind_fails_on_every_other(tree: MemoryTree) -> None:
    """Also where the group was made anew since, and its node has old versions again."""
    actors, clients, deleted = GroupKind
    with MemoryStore(tree) as store:
        known: list[SettledKind] = []
        for kind in (actors, deleted, clients, deleted, actors, clients, actors, deleted, clients, actors, deleted):
            becomes = mark_deleted(store, GROUP, []) if kind is deleted else settle_kind(store, GROUP, kind)
            assert read_kind(store, GROUP) == becomes
            known.append(becomes)
            for other in known:
                if other.kind is not kind:
                    with pytest.raises(BadVersion):
                        store.multi([other.check(GROUP)])


def test_foreign_nodes_go_with_the_group_and_are_told(store: MetadataStore) -> None:
    ensure_cluster(store)
    put_topic(store, "flights", COUNT)
    guards = make_group(store, GroupKind.ACTORS)
    [tp, *_] = COMMITTED
    foreign = {
        f"{group_paths.consumer(GROUP)}/foreign/deep",
        group_paths.member(GROUP, TWO),
        f"{group_paths.offsets_of_topic(GROUP, FLIGHTS)}/x",
        f"{group_paths.offset(GROUP, tp)}/deep",
        f"{group_paths.group(GROUP)}/foreign/deep",
    }
    for node in foreign:
        store.create(node, group_paths.encode_member(Member(frozenset(), None), TimestampMs(0)), parents=True)
    with collecting() as told:
        delete_group(store, GROUP, guards)
    assert nothing_is_left(store)
    assert foreign <= told.known.keys()


def test_registration_that_is_persistent_is_no_member(store: MetadataStore) -> None:
    """Else it would be given partitions for ever."""
    ensure_cluster(store)
    put_topic(store, "flights", COUNT)
    settled = settle_kind(store, GROUP, GroupKind.ACTORS)
    ghost, about = group_paths.member(GROUP, MemberId("ghost")), Member(frozenset((FLIGHTS,)), None)
    data = group_paths.encode_member(about, TimestampMs(0))
    store.create(ghost, data)
    with collecting() as told:
        RegistryOffsetStore(store).write(GROUP, COMMITTED, vacancy(store, GROUP, settled))
        found = store.get(ghost)
        assert found is not None
        assert found.data == data
        registry = register(store)
        looked = registry.carry_out(Look())
        assert isinstance(looked, Looked)
        assert looked.view.members.keys() == {ONE}
        with pytest.raises(NonEmptyGroup):
            delete_group(store, GROUP, [])
        store.delete(group_paths.member(GROUP, ONE))
        assert settle_kind(store, GROUP, GroupKind.CLIENTS).kind is GroupKind.CLIENTS
        delete_group(store, GROUP, [])
    assert nothing_is_left(store)
    assert told.known.keys() == {ghost}
