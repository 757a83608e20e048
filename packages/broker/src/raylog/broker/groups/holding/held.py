"""A group of Kafka clients at the broker that coordinates it: its machine, and the claim that fences its writes.

No threads and no clock: whoever holds one calls it from one thread at a time (the coordinator under the group's lock)
and hands in the time. The store may answer late or not at all. A write that was refused or is in doubt ends the hold:
somebody else has claimed the group, or the machine may be ahead of what is stored. All who wait then hear that this is
not the coordinator, look for it, and it goes on from what is stored, be it this same broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from raylog.broker.config.groups import GroupRules
from raylog.broker.groups.classic.claims import (
    UNCLAIMED,
    Claim,
    claim_of,
    coordinator_of,
    decode_group,
    encode_claim,
    encode_group,
)
from raylog.broker.groups.classic.group import ClassicGroup, GroupState
from raylog.broker.groups.classic.messages import Outcome, Reply, Token
from raylog.broker.groups.classic.stored import StoredGroup
from raylog.coordination.groups.kinds import TOLD, GroupKind, SettledKind, decode_settled, read_kind, settle_kind
from raylog.coordination.metadata import group_paths, paths
from raylog.coordination.metadata.model import ClusterState
from raylog.coordination.store.port import (
    BadVersion,
    Check,
    Create,
    MetadataStore,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    Op,
    Set,
    StoreError,
    StoreUnauthorized,
    Versioned,
)
from raylog.coordination.store.unreadable import for_good
from raylog.protocol.errors import CoordinatorNotAvailable, NotCoordinator, RaylogError
from raylog.protocol.ids import BrokerEpoch, BrokerId, GroupId, MonotonicMs

__all__ = ["Basis", "Claimant", "HeldGroup", "IdleGroup", "claim_group", "read_claim", "read_group"]

MAX_STATE_BYTES = 900_000
"""ZooKeeper closes the connection of who writes more than 1 MiB at once (jute.maxbuffer)."""

Replies = tuple[tuple[Token, Reply], ...]


class Claimant(NamedTuple):
    """A broker in one incarnation: what it claims is its own until it registers anew."""

    broker: BrokerId
    epoch: BrokerEpoch

    def checks(self) -> tuple[Check, Check]:
        """Fail unless the broker is registered in this very incarnation."""
        return Check(paths.broker(self.broker), 0), Check(paths.broker_epoch(self.broker), self.epoch)


class StoredClaim(NamedTuple):
    """A group's claim as it was read."""

    claim: Claim
    version: int | None
    """The node's; None: there is none yet."""


@dataclass(slots=True)
class Basis:
    """What must still be so for a coordinator's memory of a group to be true."""

    claimant: Claimant
    kind: SettledKind
    told: int | None
    """The version of /raylog/groups at which it was so (see group_kinds)."""


class IdleGroup(NamedTuple):
    """What is remembered of a group without members once it is put out of memory."""

    basis: Basis
    protocol_type: str


class _Nodes(NamedTuple):
    """All that is stored of a group but its offsets, as it was read."""

    told: int | None

    kind: SettledKind | None
    claim: StoredClaim
    state: Versioned | None


def read_claim(store: MetadataStore, group: GroupId) -> StoredClaim:
    """Raises StoreUnavailable, CorruptMetadata."""
    return _claim(group, store.get(group_paths.claim(group)))


def read_group(store: MetadataStore, group: GroupId) -> StoredGroup:
    """The group as its coordinator stored it. Raises StoreUnavailable, CorruptMetadata."""
    return _group(group, store.get(group_paths.state(group)))


def _claim(group: GroupId, found: Versioned | None) -> StoredClaim:
    return StoredClaim(claim_of(group, found), None if found is None else found.version)


def _group(group: GroupId, found: Versioned | None) -> StoredGroup:
    return decode_group(group_paths.state(group), b"" if found is None else found.data)


def _read(store: MetadataStore, group: GroupId) -> _Nodes:
    nodes = (group_paths.GROUPS, group_paths.group(group), group_paths.claim(group), group_paths.state(group))
    told, kind, claim, state = store.get_many(nodes)
    return _Nodes(None if told is None else told.version, decode_settled(group, kind), _claim(group, claim), state)


def check_coordinates(group: GroupId, claim: Claim, me: Claimant, cluster: ClusterState) -> None:
    """Raises NotCoordinator when another broker than ``me`` coordinates the group, or ``me`` is of the past."""
    _check_is_chosen(group, claim, me, cluster)
    if is_later(claim, me):
        raise NotCoordinator(f"broker {me.broker} claimed group {group} in a later life than this one")


def is_later(claim: Claim, me: Claimant) -> bool:
    """Either ``me`` is of the past, or no life of this broker has made the claim: a restored ZooKeeper has such."""
    return claim.broker == me.broker and claim.epoch > me.epoch


def _check_is_chosen(group: GroupId, claim: Claim, me: Claimant, cluster: ClusterState) -> None:
    coordinator = coordinator_of(group, claim, cluster)
    if coordinator is None or coordinator.id != me.broker:
        where = f"broker {coordinator.id}" if coordinator is not None else "no live broker that is known here"
        raise NotCoordinator(f"group {group} is coordinated by {where}, not by broker {me.broker}")


def claim_group(
    store: MetadataStore,
    group: GroupId,
    me: Claimant,
    cluster: ClusterState,
    rules: GroupRules,
    now_ms: MonotonicMs,
    *,
    make: bool,
) -> HeldGroup | None:
    """Coordinate the group from now on, as its last coordinator left it. A claim of a later life (:func:`is_later`) is
    replaced: the store refuses that write of a broker of the past, whose registration is another one by now.

    None when it is no group of Kafka clients; with ``make`` it becomes one, if no actors are in it. Raises
    NotCoordinator when another able broker holds it, is to claim it, or was faster; InvalidGroupId,
    InconsistentGroupProtocol, CorruptMetadata (also where the store refuses a node), CoordinatorNotAvailable (the store
    does not answer).
    """
    try:
        found = _read(store, group)
        _check_is_chosen(group, found.claim.claim, me, cluster)
        if make and (found.kind is None or found.kind.kind is not GroupKind.CLIENTS):
            kind = settle_kind(store, group, GroupKind.CLIENTS)
            found = _read(store, group)._replace(
                told=found.told, kind=kind
            )  # the claim and the state may have changed with it
            _check_is_chosen(group, found.claim.claim, me, cluster)
        if found.kind is None or found.kind.kind is not GroupKind.CLIENTS:
            return None
        basis = Basis(me, found.kind, found.told)
        held = HeldGroup(store, group, basis, found.claim, found.state, rules, now_ms)
        if found.claim.claim != Claim(*me) or found.state is None:
            held.claim()
        return held
    except (StoreUnauthorized, NoChildrenForEphemerals) as error:
        raise for_good(error) from error
    except (BadVersion, NodeExists, NoNode) as error:
        raise NotCoordinator(f"group {group} was claimed by another broker meanwhile: {error}") from error
    except StoreError as error:
        raise CoordinatorNotAvailable(f"the metadata store does not answer for group {group}: {error}") from error


class HeldGroup:
    """See the module's docstring. Made by :func:`claim_group`."""

    def __init__(
        self,
        store: MetadataStore,
        group: GroupId,
        basis: Basis,
        claim: StoredClaim,
        state: Versioned | None,
        rules: GroupRules,
        now_ms: MonotonicMs,
    ) -> None:
        self.basis = basis
        self.machine = ClassicGroup(group, rules, _group(group, state), now_ms)
        self.lost: RaylogError | None = None
        """Why this is not the group's coordinator any more."""
        self._store = store
        self._former = claim.claim
        self._claim_version = claim.version
        self._version = None if state is None else state.version
        """Of the group's state; None: there is none yet."""

    @property
    def claimant(self) -> Claimant:
        return self.basis.claimant

    @property
    def is_idle(self) -> bool:
        """True when the group has no members, and no time to pass: it may be put out of memory."""
        return self.machine.state is GroupState.EMPTY and self.machine.next_tick_ms() is None

    @property
    def is_at_rest(self) -> bool:
        """True when another coordinator would find the group as it is: no rebalance is under way."""
        return self.machine.state is GroupState.STABLE or self.is_idle

    def settle(self, outcome: Outcome) -> Replies:
        """The replies to send now: what must be stored before them is, or else all who wait hear of the loss."""
        if outcome.store is None:
            return outcome.replies
        try:
            self.write(outcome.store)
            return outcome.replies
        except (StoreUnauthorized, NoChildrenForEphemerals) as refused:
            error: RaylogError = for_good(refused)  # who looks for another coordinator finds this one again
        except StoreError as doubt:
            error = NotCoordinator(f"group {self.machine.id} could not be stored, or nobody knows: {doubt}")
        except RaylogError as too_large:
            error = too_large
        return (*((token, error) for token, _ in outcome.replies), *self.lose(error))

    def was_taken(self) -> bool:
        """Whether actors have taken the group, which they can while it is empty; asks the store then."""
        return not len(self.machine.members) and read_kind(self._store, self.machine.id) != self.basis.kind

    def lose(self, error: RaylogError) -> Replies:
        """Hold the group no more; what all who wait are told, also by what a defect left unsaid."""
        self.lost = error
        return tuple((token, error) for token, _ in self.machine.unload(error).replies)

    def fence(self) -> Sequence[Op]:
        """Operations that fail in the multi of a write that comes after another broker's claim, another state of the
        group, the change of its kind, or the end of this broker's registration.
        """
        assert self._version is not None
        return *self._checks(), self._check_claim(), Check(group_paths.state(self.machine.id), self._version)

    def claim(self) -> None:
        """Become the group's coordinator, at the state that was read. Raises StoreError."""
        group, data = self.machine.id, encode_claim(Claim(*self.claimant))
        node, state = group_paths.claim(group), group_paths.state(group)
        as_read = Create(state) if self._version is None else Check(state, self._version)
        becomes = Create(node, data) if self._claim_version is None else Set(node, data, self._claim_version)
        told = [] if self._former.broker in (UNCLAIMED.broker, self.claimant.broker) else [TOLD]
        *_, version = self._store.multi([*self._checks(), as_read, *told, becomes])
        self._claim_version = version if isinstance(version, int) else 0
        self._version = self._version or 0

    def release(self) -> None:
        """Leave the group, as it is stored, to the broker that is to claim it. Raises StoreError."""
        assert self._version is not None
        assert self._claim_version is not None
        group = self.machine.id
        as_stored = Check(group_paths.state(group), self._version)
        becomes = Set(group_paths.claim(group), encode_claim(UNCLAIMED), self._claim_version)
        self._store.multi([*self._checks(), as_stored, becomes])

    def write(self, stored: StoredGroup) -> None:
        """Store the group under this claim. Raises StoreError; RaylogError when it is too large to be stored."""
        assert self._version is not None
        group = self.machine.id
        data = encode_group(stored)
        if len(data) > MAX_STATE_BYTES:
            raise RaylogError(
                f"group {group}: its {len(stored.members)} members' subscriptions and assignments take {len(data)} "
                f"bytes, more than the metadata store takes at once ({MAX_STATE_BYTES}): use fewer members or topics"
            )
        becomes = Set(group_paths.state(group), data, self._version)
        *_, version = self._store.multi([*self._checks(), self._check_claim(), becomes])
        assert isinstance(version, int)
        self._version = version

    def _check_claim(self) -> Check:
        assert self._claim_version is not None
        return Check(group_paths.claim(self.machine.id), self._claim_version)

    def _checks(self) -> tuple[Check, ...]:
        """A group that is deleted and made anew begins with version 0 again: so a broker's writes end with its
        registration, too, however long it was stopped in between.
        """
        return *self.claimant.checks(), self.basis.kind.check(self.machine.id)
