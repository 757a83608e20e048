"""Every stored group of Kafka clients has a coordinator, asked or not, and each broker coordinates its share.

A group whose coordinator and members vanish together would stay as it is for ever if it was claimed only by being asked
for: nobody lets its time pass. So each broker looks which of the stored groups are to be its own (see classic_claims),
and claims those whose coordinator is gone. And it gives away what is to be another broker's since that came, a few at a
time; a group that rebalances is left alone until that is over.

What a look costs is bounded: the names of all groups, and the claims of those that are to be here, or were claimed
here, or are held; a broker's first look in each incarnation reads the claims of all, and so does one every
ALL_CLAIMS_MS. One without members is read once for each claim, and after it was held. A look follows each change of the
able brokers; another one comes every LOOK_MS, for what went wrong meanwhile. What this broker let go of, since it had
no lease or the store did not answer, it holds again with the next pass. A group that is busy, for its write hangs,
holds up no other.

Where the controller does not reach this broker, others claim its groups, though it is registered and has its lease. It
may hear of no change then, and lets go of them with its next write for each, or with its next look.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Protocol

from raylog.broker.events import EventLog
from raylog.broker.groups.classic.claims import (
    Claim,
    able_brokers,
    choose_coordinator,
    claim_of,
    coordinator_of,
)
from raylog.broker.groups.holding.table import GroupBusy
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.model import ClusterState
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.coordination.store.port import MetadataStore, StoreError, StoreUnauthorized, Versioned
from raylog.coordination.store.unreadable import readable, skipping, tell
from raylog.protocol.errors import CoordinatorNotAvailable, NotCoordinator, RaylogError
from raylog.protocol.ids import BrokerId, GroupId, MonotonicMs

__all__ = ["GroupKeeper", "KeptGroups"]

log = EventLog(__name__)

Found = Versioned | StoreUnauthorized | None
"""A claim as it was read."""

TURN_S = 1.0
LOOK_MS = 30_000
"""How often it looks though no broker came or went."""
ALL_CLAIMS_MS = 600_000
"""How often it reads the claims of all groups: one that names this broker may be none that it knows of."""
SETTLE_MS = 10_000
"""For so long no broker must have come or gone before groups are moved: a rolling restart moves each once or twice."""
CLAIMS_AT_ONCE = 50
"""In one pass; so are those that are moved."""
MOVES_AT_ONCE = 25


class KeptGroups(Protocol):
    """The groups of this broker; see GroupHolder."""

    def check_may_act(self) -> None: ...

    def forget_idle(self) -> None: ...

    def held_groups(self) -> Collection[GroupId]: ...

    def claimed_groups(self) -> Collection[GroupId]: ...

    def let_go_groups(self) -> Collection[GroupId]: ...

    def lost(self, group: GroupId, *, wait: bool) -> None: ...

    def adopt(self, group: GroupId) -> bool: ...

    def move(self, group: GroupId, to: BrokerId) -> None: ...


class GroupKeeper:
    """One thread calls it."""

    def __init__(
        self,
        store: MetadataStore,
        groups: KeptGroups,
        *,
        me: Callable[[], Claim],
        cluster: Callable[[], ClusterState],
        now_ms: Callable[[], MonotonicMs],
    ) -> None:
        """``me``: this broker in its incarnation now."""
        self._store = store
        self._groups = groups
        self._me = me
        self._cluster = cluster
        self._now_ms = now_ms
        self._brokers: frozenset[Claim] = frozenset()
        """The able ones, in their incarnations, as they were at the last pass."""
        self._changed_ms = self._look_ms = now_ms()
        """When those changed last; when the next look is due."""
        self._all_claims_ms = now_ms()
        """When a look at the claims of all groups is due."""
        self._looked_as: Claim | None = None
        """The incarnation that has looked at all groups' claims; later looks are at those that may be its own."""
        self._was_answered = True
        """By the store, in the last pass."""
        self._idle: dict[GroupId, Found] = {}
        """Groups that there is nothing to do for while this is their claim."""
        self._let_go: deque[GroupId] = deque()
        """What is left of a round of those that were let go of."""
        self._orphans: deque[tuple[GroupId, Found]] = deque()
        """Groups to be claimed, and their claims as they were at the last look."""
        self._named: frozenset[GroupId] = frozenset()
        """Groups that are to be claimed here by their claims alone: a restored store names later lives of brokers."""
        self._strays: deque[tuple[GroupId, BrokerId]] = deque()
        """Groups that are claimed here, and the brokers that they are to be moved to."""

    def turn(self, stopping: threading.Event) -> bool:
        """One pass, after a while; False when ``stopping`` is set meanwhile."""
        if stopping.wait(TURN_S):
            return False
        self.keep()
        return True

    def keep(self) -> None:
        """One pass. It ends with what the store does not answer; the next one goes on with the other groups."""
        try:
            self._groups.check_may_act()
            self._keep(self._now_ms())
            self._was_answered = True
        except NotCoordinator:
            pass  # this broker may not act now
        except (StoreError, CoordinatorNotAvailable) as error:
            if self._was_answered:  # else it was told
                log.warning("stored groups were not looked through", reason=error)
            self._was_answered = False

    def _keep(self, now_ms: MonotonicMs) -> None:
        brokers = frozenset(Claim(broker.id, broker.epoch) for broker in able_brokers(self._cluster()))
        if brokers != self._brokers:
            self._brokers, self._changed_ms, self._look_ms = brokers, now_ms, now_ms
        if self._look_ms <= now_ms:
            self._look(now_ms)
            self._look_ms = MonotonicMs(now_ms + LOOK_MS)
        self._let_go = self._let_go or deque(self._groups.let_go_groups())
        for _ in range(min(CLAIMS_AT_ONCE, len(self._let_go))):
            with suppress(GroupBusy):
                self._adopt(self._let_go.popleft(), None)  # if that fails, the group is in the next round
        for _ in range(min(CLAIMS_AT_ONCE, len(self._orphans))):
            orphan = self._orphans.popleft()
            try:
                self._adopt(*orphan)
            except GroupBusy:
                self._orphans.append(orphan)
            except CoordinatorNotAvailable:
                self._orphans.append(orphan)
                raise
        if now_ms - self._changed_ms >= SETTLE_MS:
            for _ in range(min(MOVES_AT_ONCE, len(self._strays))):
                self._move(*self._strays.popleft())

    def _look(self, now_ms: MonotonicMs) -> None:
        """Find out which groups are to be claimed, and which to be given away."""
        me, cluster = self._me(), self._cluster()
        if me != self._looked_as:
            self._idle = {}
        self._groups.forget_idle()
        held, claimed = set(self._groups.held_groups()), set(self._groups.claimed_groups())
        stored = self._stored()
        goes_to = self._goes_to(stored, cluster)
        all_claims = me != self._looked_as or self._all_claims_ms <= now_ms
        not_held = [group for group in (goes_to if all_claims else self._maybe_here(goes_to)) if group not in held]
        asked = [*not_held, *held]
        claims = self._store.get_each([group_paths.claim(group) for group in asked])
        found = dict(zip(asked, claims, strict=True))
        for group in held:
            self._check_held(group, found.pop(group))
        same = {group for group, claim in self._idle.items() if group in found and found[group] == claim}
        self._idle = {group: found[group] for group in same.difference(self._groups.let_go_groups())}
        here = [group for group in not_held if self._is_to_be_here(group, found[group])]
        self._orphans = deque((group, found[group]) for group in here if group not in self._idle)
        self._named = frozenset(group for group in here if goes_to[group] != me.broker)
        self._strays = deque((group, to) for group, to in goes_to.items() if group in claimed and to != me.broker)
        self._looked_as = me
        if all_claims:
            self._all_claims_ms = MonotonicMs(now_ms + ALL_CLAIMS_MS)

    def maybe_here(self, groups: Iterable[GroupId], cluster: ClusterState) -> list[GroupId]:
        """Those of the stored groups that this broker may have to coordinate: their claims tell. Any thread may ask."""
        return self._maybe_here(self._goes_to(groups, cluster))

    def _goes_to(self, groups: Iterable[GroupId], cluster: ClusterState) -> dict[GroupId, BrokerId]:
        """The broker that each group falls to where its claim is not in force; this one where there is none."""
        me, able = self._me().broker, tuple(able_brokers(cluster))
        chosen = ((group, choose_coordinator(group, able)) for group in groups)
        return {group: me if broker is None else broker.id for group, broker in chosen}

    def _maybe_here(self, goes_to: Mapping[GroupId, BrokerId]) -> list[GroupId]:
        me = self._me()
        if me != self._looked_as:
            return list(goes_to)
        ours = self._named.union(self._groups.claimed_groups())
        return [group for group, to in goes_to.items() if to == me.broker or group in ours]

    def _stored(self) -> list[GroupId]:
        stored = []
        for name in self._store.children(group_paths.GROUPS):
            with skipping():
                stored.append(group_paths.group_named(name, group_paths.GROUPS))
        return stored

    def _check_held(self, group: GroupId, found: Found) -> None:
        """Another broker claims what this one holds where the controller does not reach it: it would hear so with its
        next write, and until then tell members that they are in the group.
        """
        try:
            if claim_of(group, readable(found)).broker != self._me().broker:
                self._groups.lost(group, wait=False)
        except GroupBusy:
            pass  # its write is refused, or the next look finds it free
        except CorruptMetadata:
            pass  # the next write of the claim tells it

    def _is_to_be_here(self, group: GroupId, found: Found) -> bool:
        try:
            claim = claim_of(group, readable(found))
        except CorruptMetadata:
            return True  # it is told when it is claimed
        coordinator = coordinator_of(group, claim, self._cluster())
        return coordinator is not None and coordinator.id == self._me().broker

    def _adopt(self, group: GroupId, claim: Found) -> None:
        """Raises GroupBusy, CoordinatorNotAvailable."""
        try:
            if self._groups.adopt(group):
                return
        except NotCoordinator:
            return  # another broker was faster, or is to be it since
        except (GroupBusy, CoordinatorNotAvailable):
            raise
        except CorruptMetadata as error:
            tell(error)
            return  # perhaps it is mended until the next look
        except RaylogError as error:
            log.warning("a group cannot be coordinated", group=group, reason=error)
        self._idle[group] = claim

    def _move(self, group: GroupId, to: BrokerId) -> None:
        try:
            self._groups.move(group, to)
        except NotCoordinator:
            pass  # it is another broker's already
        except GroupBusy:
            self._strays.append((group, to))
        except CoordinatorNotAvailable:
            self._strays.append((group, to))
            raise
        except CorruptMetadata as error:
            tell(error)
        except RaylogError as error:
            log.warning("a group cannot be moved", group=group, reason=error)
