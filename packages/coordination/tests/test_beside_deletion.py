"""Groups are deleted, and offsets forgotten, between any two steps of those that use them: all can be used after it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

import pytest

from kit.stores import Meddled
from kit.topics import forget_offsets, put_topic, replace_topic, stored_configs
from raylog.coordination.groups.kinds import GroupKind, read_kind, settle_kind
from raylog.coordination.groups.nodes import delete_group, group_ids
from raylog.coordination.groups.offsets import CommittedOffset, RegistryOffsetStore
from raylog.coordination.groups.registry import GroupRegistry
from raylog.coordination.membership.registration import ensure_cluster
from raylog.coordination.metadata import configs, group_paths, paths
from raylog.coordination.metadata.group_events import Register, Registered
from raylog.coordination.metadata.group_model import Registered as Member
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import MetadataStore, StoreError
from raylog.protocol.errors import NonEmptyGroup
from raylog.protocol.ids import (
    GroupId,
    MemberId,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)

log = logging.getLogger(__name__)

GROUP = GroupId("billing")
ME = MemberId("one")
FLIGHTS = TopicName("flights")
TPS = [TopicPartition(FLIGHTS, PartitionIndex(index)) for index in range(2)]
MOST_CALLS = 100

Meddles = Callable[[MetadataStore], None]


def delete(store: MetadataStore) -> None:
    try:
        delete_group(store, GROUP, ())
    except NonEmptyGroup:
        pass


def forget(store: MetadataStore) -> None:
    forget_offsets(RegistryOffsetStore(store), GROUP, TPS, ())


def opened(tree: MemoryTree) -> MemoryStore:
    store = MemoryStore(tree)
    store.start()
    return store


def commit(store: MetadataStore) -> None:
    """As a coordinator does for a client; the commit stands, unless the group is deleted."""
    settled = settle_kind(store, GROUP, GroupKind.CLIENTS)
    offsets = {tp: CommittedOffset(Offset(5)) for tp in TPS}
    try:
        assert RegistryOffsetStore(store).write(GROUP, offsets, [settled.check(GROUP)]) == {}
    except StoreError as error:
        if error.index != 0:  # else it is the check of the group: its coordinator looks again
            raise


def registry(store: MetadataStore) -> GroupRegistry:
    about = Member(frozenset({FLIGHTS}), None, "", -1)
    return GroupRegistry(store, GROUP, ME, about, SimpleQueue().put, lambda: TimestampMs(1))


def register(store: MetadataStore) -> None:
    registry(store).carry_out(Register())


def claim(store: MetadataStore) -> None:
    """A member's, which begins anew when it is refused."""
    for tp in TPS:
        for _ in range(2):
            settle_kind(store, GROUP, GroupKind.CLIENTS)  # so that its offsets may be forgotten while it claims
            try:
                RegistryOffsetStore(store).claim(GROUP, tp, ME)
            except StoreError as error:
                log.info("claims again: %s", error)
            else:
                break
        else:
            raise AssertionError("refused twice, and only one deletion came between")


def check_usable(tree: MemoryTree) -> None:
    store = opened(tree)
    read_kind(store, GROUP)
    delete(store)
    assert group_ids(store) == []
    commit(store)
    assert RegistryOffsetStore(store).fetch(GROUP)[TPS[0]].offset == 5


@pytest.mark.parametrize("meddles", [delete, forget])
@pytest.mark.parametrize("uses", [commit, register, claim])
@pytest.mark.parametrize("first", [commit, register, None])
def test_a_group_can_be_used_whatever_is_deleted_between_two_steps(
    first: Callable[[MetadataStore], None] | None, uses: Callable[[MetadataStore], None], meddles: Meddles
) -> None:
    for at in range(1, MOST_CALLS):
        tree = MemoryTree()
        store, other = Meddled(tree), opened(tree)
        store.start()
        put_topic(other, FLIGHTS, partitions=len(TPS))
        if first is not None:
            begun = opened(tree)
            first(begun)
            begun.close()
        store.meddle(at, partial(meddles, other))
        uses(store)
        if uses is register:
            assert isinstance(registry(store).carry_out(Register()), Registered)
        store.close()
        check_usable(tree)
        if not store.met:
            break
    assert 2 < at < MOST_CALLS - 1


def test_a_member_registers_in_a_group_whose_registry_was_deleted() -> None:
    store = opened(MemoryTree())
    settle_kind(store, GROUP, GroupKind.ACTORS)
    store.delete(group_paths.members(GROUP))
    assert isinstance(registry(store).carry_out(Register()), Registered)


def test_overrides_read_of_a_topic_are_not_given_to_the_next_of_its_name() -> None:
    """Its node at version 0, as the former one's was, when a change of that one is written."""
    tree = MemoryTree()
    store, other = Meddled(tree), opened(tree)
    store.start()
    ensure_cluster(other)
    put_topic(other, FLIGHTS)
    node = paths.topic_config(FLIGHTS)
    other.create(node, paths.encode_config({"retention.ms": "1000"}))

    def replace() -> None:
        if not replaced:
            replaced.append(replace_topic(other, FLIGHTS))
            other.delete(node)
            other.create(node, paths.encode_config({}))

    for at in range(1, MOST_CALLS):
        replaced: list[TopicId] = []
        store.meddle(at, replace)
        configs.alter_topic_configs(store, FLIGHTS, lambda old: {**old, "flush.ms": "5"})
        if not store.met:
            break
        found = stored_configs(other, paths.topic_config(FLIGHTS))
        assert found in ({}, {"flush.ms": "5"})
        other.set(node, paths.encode_config({"retention.ms": "1000"}))
    assert 3 < at < MOST_CALLS - 1
