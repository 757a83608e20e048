"""The groups that a broker coordinates or is to, as ListGroups shows them.

A broker remembers the groups of clients that it has claimed, and asks the store no more than the names of all groups
and whether anybody else has changed one since (see group_kinds). Where somebody has, it looks at its groups' kinds and
claims once. What it does not remember it reads, in a few round trips, however many groups there are: those of actors,
those that no broker has claimed yet. Each step asks about all groups at once, and only about those that the step before
has left: which of them are to be here, of which kind those are, and then what tells their state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from raylog.broker.groups.actors import list_actors, registered_names
from raylog.broker.groups.classic.claims import UNCLAIMED, Claim, claim_of, coordinator_of, decode_group, is_in_force
from raylog.broker.groups.classic.described import ListedGroup
from raylog.broker.groups.classic.group import GroupState
from raylog.broker.groups.holding.held import Basis
from raylog.broker.groups.holding.holding import GroupHolder
from raylog.broker.groups.holding.keeper import GroupKeeper
from raylog.coordination.groups.kinds import GroupKind, decode_settled
from raylog.coordination.groups.nodes import group_ids
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.model import ClusterState
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.coordination.store.port import MetadataStore, StoreUnauthorized, Versioned
from raylog.coordination.store.unreadable import readable, tell
from raylog.protocol.ids import BrokerId, GroupId
from raylog.protocol.wire import consumer_protocol

__all__ = ["GroupListing", "list_stored"]

UNKNOWN = "Unknown"
"""The state of a group whose nodes make no sense. Describing it tells what is wrong."""


class GroupListing:
    """Any thread may call."""

    def __init__(
        self, store: MetadataStore, holder: GroupHolder, keeper: GroupKeeper, cluster: Callable[[], ClusterState]
    ) -> None:
        self._store = store
        self._holder = holder
        self._keeper = keeper
        self._cluster = cluster

    def list(self) -> list[ListedGroup]:
        """In order. Raises StoreError."""
        me, cluster = Claim(*self._holder.claimant()), self._cluster()
        self._store.heartbeat()  # the server that answers may lag behind the one that took a claim
        node = self._store.exists(group_paths.GROUPS)
        names = group_ids(self._store)
        known = self._holder.known() if is_in_force(me, cluster) else {}
        bases = {group: known[group][0] for group in names if group in known}
        true = _still_true(self._store, bases, None if node is None else node.version)
        for group in bases.keys() - true:
            self._holder.forget_if_idle(group)
        others = self._keeper.maybe_here((group for group in names if group not in true), cluster)
        stored = list_stored(self._store, others, me.broker, cluster) if others else []
        return sorted([*(known[group][1] for group in true), *stored])


def _still_true(store: MetadataStore, bases: Mapping[GroupId, Basis], told: int | None) -> set[GroupId]:
    """Those of the groups of which a broker's memory is true, and notes which was looked at."""
    doubted = [group for group, basis in bases.items() if basis.told != told]
    true = bases.keys() - doubted
    kinds = store.get_each([group_paths.group(group) for group in doubted]) if doubted else []
    claims = store.get_each([group_paths.claim(group) for group in doubted]) if doubted else []
    for group, kind, claim in zip(doubted, kinds, claims, strict=True):
        basis = bases[group]
        with suppress(CorruptMetadata):
            is_ours = claim_of(group, readable(claim)) == Claim(*basis.claimant)
            if is_ours and decode_settled(group, readable(kind)) == basis.kind:
                basis.told = told
                true.add(group)
    return true


def list_stored(
    store: MetadataStore, groups: Sequence[GroupId], me: BrokerId, cluster: ClusterState
) -> list[ListedGroup]:
    """Those of ``groups`` that there are and that ``me`` coordinates, as they are stored. Raises StoreUnavailable."""
    claims = store.get_each([group_paths.claim(group) for group in groups])
    mine = [group for group, found in zip(groups, claims, strict=True) if _coordinates(me, group, found, cluster)]
    kinds = store.get_each([group_paths.group(group) for group in mine])
    by_kind: dict[GroupKind | None, list[GroupId]] = {}
    listed = []
    for group, found in zip(mine, kinds, strict=True):
        try:
            settled = decode_settled(group, readable(found))
        except CorruptMetadata as error:
            listed.append(_unknown(group, error))
        else:
            by_kind.setdefault(settled.kind if settled else None, []).append(group)
    listed += _of_old_tools(store, by_kind.get(None, ()))
    listed += _of_clients(store, by_kind.get(GroupKind.CLIENTS, ()))
    for group, state in list_actors(store, by_kind.get(GroupKind.ACTORS, ())).items():
        if isinstance(state, CorruptMetadata):
            listed.append(_unknown(group, state))
        else:
            listed.append(ListedGroup(group, consumer_protocol.PROTOCOL_TYPE, state))
    return listed


def _unknown(group: GroupId, error: CorruptMetadata) -> ListedGroup:
    tell(error)
    return ListedGroup(group, "", UNKNOWN)


def _coordinates(
    me: BrokerId, group: GroupId, found: Versioned | StoreUnauthorized | None, cluster: ClusterState
) -> bool:
    try:
        claim = claim_of(group, readable(found))
    except CorruptMetadata:
        claim = UNCLAIMED
    coordinator = coordinator_of(group, claim, cluster)
    return coordinator is not None and coordinator.id == me


def _of_old_tools(store: MetadataStore, groups: Sequence[GroupId]) -> list[ListedGroup]:
    """Tools of Kafka's ZooKeeper era committed for them, or consumers are registered; others were deleted just now."""
    there = store.exists_many([group_paths.consumer(group) for group in groups])
    known = [group for group, found in zip(groups, there, strict=True) if found is not None]
    listed = []
    for group, names in registered_names(store, known).items():
        if isinstance(names, CorruptMetadata):
            listed.append(_unknown(group, names))
        else:
            listed.append(ListedGroup(group, "", GroupState.STABLE if names else GroupState.EMPTY))
    return listed


def _of_clients(store: MetadataStore, groups: Sequence[GroupId]) -> list[ListedGroup]:
    nodes = [group_paths.state(group) for group in groups]
    listed = []
    for group, node, found in zip(groups, nodes, store.get_each(nodes), strict=True):
        try:
            state_node = readable(found)
            stored = decode_group(node, state_node.data if state_node else b"")
        except CorruptMetadata as error:
            listed.append(_unknown(group, error))
        else:
            state = GroupState.STABLE if stored.members else GroupState.EMPTY
            listed.append(ListedGroup(group, stored.protocol_type, state))
    return listed
