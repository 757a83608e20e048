"""Designs of consumer groups with one mistake each, that the simulator must be able to find (see ``planted``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from raylog.broker.groups.classic.group import ClassicGroup, GroupState
from raylog.broker.groups.classic.messages import Identity, Outcome, Reply, Token
from raylog.broker.groups.coordinator import GroupCoordinator
from raylog.broker.groups.holding.held import HeldGroup
from raylog.broker.groups.holding.holding import GroupHolder
from raylog.broker.groups.holding.table import Entry
from raylog.coordination.groups.claims import GroupClaims
from raylog.coordination.groups.kinds import SettledKind
from raylog.coordination.groups.offset_nodes import Stored
from raylog.coordination.groups.offset_store import BY_NAME, Topics
from raylog.coordination.groups.offsets import RegistryOffsetStore
from raylog.coordination.groups.registry import GroupRegistry
from raylog.coordination.membership.lease import Lease
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_events import Event
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.coordination.metadata.model import ClusterState
from raylog.coordination.store.port import ANY_VERSION, Delete, MetadataStore, Op, OpResult, Stat, StoreError
from raylog.protocol.errors import NonEmptyGroup, RaylogError
from raylog.protocol.ids import GroupId, MemberId, MonotonicMs, Offset, TopicId, TopicName, TopicPartition

from .apart import TAKEN_OVER
from .group_invariants import (
    ABANDONED,
    ACTORS,
    KEPT,
    NOTHING_SKIPPED,
    ONE_COORDINATOR,
    ONE_INSTANCE,
    ONE_OWNER,
    READ,
    SAME_SHARE,
    STALE_COMMIT,
    STORED_FIRST,
)
from .groups import GroupDesign
from .invariants import IN_TIME, PROGRESS
from .loops import EndsByAnError, RunningLoop, RunningLoops, SimLoops


class EndlessLease(Lease):
    """A leader serves on, whoever else was elected; a member works on while it is cut off, whoever else has claimed."""

    def held(self, now_ms: MonotonicMs) -> bool:
        return True


# --- groups of actors


class CommitsAnyVersion(GroupClaims):
    """Neither the version of the offset nor the registration is looked at when it commits (D9b)."""

    def _committed(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> bool:
        self._claims = {tp: claim._replace(version=ANY_VERSION, guards=()) for tp, claim in self._claims.items()}
        return super()._committed(offsets)


class ClaimsByForce(GroupClaims):
    """Takes what was assigned to it from whoever has it still."""

    def __init__(self, store: MetadataStore, group: GroupId, member_id: MemberId) -> None:
        super().__init__(store, group, member_id)
        self._store = store

    def claim(self, tp: TopicPartition) -> Event:
        try:
            self._store.multi([Delete(group_paths.owner(self._group, tp))])
        except StoreError:
            pass
        return super().claim(tp)


def _with_claims(kind: type[GroupClaims]) -> type[GroupRegistry]:
    class Registry(GroupRegistry):
        def __init__(self, store: Any, group: Any, member_id: Any, *more: Any) -> None:
            super().__init__(store, group, member_id, *more)
            self.claims = kind(store, group, member_id)

    return Registry


class LeftOut:
    """A store whose multis are carried out in part."""

    def __init__(self, store: MetadataStore, is_left_out: Callable[[Op], bool]) -> None:
        self._store = store
        self._is_left_out = is_left_out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def multi(self, ops: Sequence[Op]) -> Sequence[OpResult]:
        return self._store.multi([op for op in ops if not self._is_left_out(op)])


def _registers_without(is_left_out: Callable[[Op], bool]) -> type[GroupRegistry]:
    class Registry(GroupRegistry):
        def _registered(self, settled: SettledKind) -> Stat | None:
            whole, self._store = self._store, LeftOut(self._store, is_left_out)  # type: ignore[assignment]
            try:
                return super()._registered(settled)
            finally:
                self._store = whole

    return Registry


def _is_former(op: Op) -> bool:
    """The end of a registration."""
    return isinstance(op, Delete) and op.path.startswith(group_paths.members(ACTORS) + "/")


def _is_share(op: Op) -> bool:
    return op.path.startswith(group_paths.assignment(ACTORS))


# --- groups of clients


class CommitsUnfenced(HeldGroup):
    """The generation is looked at before the commit is written, and may be another by then."""

    def fence(self) -> Sequence[Op]:
        return ()


class RepliesFirst(HeldGroup):
    """Members are told an assignment that perhaps nobody will know of."""

    def settle(self, outcome: Outcome) -> tuple[tuple[Token, Reply], ...]:
        super().settle(outcome)
        return outcome.replies


class AnyGeneration(ClassicGroup):
    """A member's commit counts, in whatever generation it is."""

    def check_commit(self, who: Identity, now_ms: MonotonicMs) -> None:
        self.members.identify(who)


class FetchesFiveBack(GroupCoordinator):
    """OffsetFetch answers what was committed a while ago."""

    def fetch_offsets(
        self, group: GroupId, partitions: Sequence[TopicPartition] | None, topics: Topics = BY_NAME
    ) -> Mapping[TopicPartition, CommittedOffset | RaylogError]:
        found = super().fetch_offsets(group, partitions, topics)
        return {
            tp: each._replace(offset=Offset(max(0, each.offset - 5))) if isinstance(each, CommittedOffset) else each
            for tp, each in found.items()
        }


class TicksLate(GroupCoordinator):
    """Sessions and rebalances end, and long after their time."""

    @property
    def next_tick_ms(self) -> MonotonicMs:
        return MonotonicMs(super().next_tick_ms + 8_000)


class LeavesGroupsAlone(GroupCoordinator):
    """A group that nobody asks for has no coordinator, so that its time does not pass."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.keeper.keep = lambda: None  # type: ignore[method-assign]


class DeletesInTwoSteps(GroupCoordinator):
    """DeleteGroups looks whether the group is empty, and then forgets its offsets, whoever has joined meanwhile."""

    def delete(self, group: GroupId) -> None:
        with self._holder.enter(group) as entry:
            if self._describe(entry, group).state != GroupState.EMPTY:
                raise NonEmptyGroup(f"group {group} has members")
        seen = self._offsets.look(group)
        self._offsets.forget(group, seen, seen.partitions, ())
        super().delete(group)


class CoordinatesThoughCutOff(GroupCoordinator):
    """Who is registered may be chosen to coordinate a group, though the controller does not reach it."""

    def __init__(self, *args: Any, cluster: Callable[[], ClusterState], **more: Any) -> None:
        super().__init__(*args, cluster=lambda: cluster().changed(fenced=frozenset()), **more)


class ClearsByName(GroupCoordinator):
    """When a topic was deleted, what is committed for its name goes, be it for another topic of that name by now."""

    def __init__(self, *args: Any, cluster: Callable[[], ClusterState], **more: Any) -> None:
        self._names: dict[TopicId, TopicName] = {}
        self._cleared: dict[GroupId, set[TopicId]] = defaultdict(set)

        def known() -> ClusterState:
            state = cluster()
            self._names |= {topic.id: topic.name for topic in state.topics.values()}
            return state

        super().__init__(*args, cluster=known, **more)

    def forget_deleted_topics(self, group: GroupId) -> Sequence[TopicPartition]:
        with self._holder.enter(group) as entry:
            self._holder.check_coordinates(entry, group)
            gone = self._names.keys() - self._cluster().topics_by_id.keys() - self._cleared[group]
            names = {self._names[topic_id] for topic_id in gone}
            seen = self._offsets.look(group)
            theirs = [tp for tp in seen.partitions if tp.topic in names]
            self._offsets.forget(group, seen, theirs, self._fence(entry, group))
            self._cleared[group] |= gone
            return theirs


class CountsForAnyTopic(RegistryOffsetStore):
    """An offset is one of whatever topic has the name now."""

    def _counting(
        self, group: GroupId, stored: Mapping[TopicPartition, Stored], topics: Topics
    ) -> Sequence[TopicPartition]:
        return list(stored)


class AnswersForAnyTopic(GroupCoordinator):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._offsets = CountsForAnyTopic(self._store)


class ClaimsForAnyTopic(GroupClaims):
    def __init__(self, store: MetadataStore, group: GroupId, member_id: MemberId) -> None:
        super().__init__(store, group, member_id)
        self._offsets = CountsForAnyTopic(store)


class LeavesOwnerNodes(GroupClaims):
    """What it had claimed of a topic that is deleted is forgotten, and its owner's node left where it is."""

    def _disown(self, tp: TopicPartition) -> bool:
        return True


class EndingLoops(SimLoops):
    kind = EndsByAnError


class EndsInSilence(EndsByAnError, RunningLoop):
    """The thread of a member ends, and its session stays with all that it has claimed."""

    def _note(self, error: Exception) -> None:
        super()._note(error)
        self._mend = self._finish = lambda *_: None


class SilentLoops(RunningLoops):
    kind = EndsInSilence


def _clients(hold: type[HeldGroup] = HeldGroup, machine: type[ClassicGroup] = ClassicGroup) -> GroupDesign:
    class Holder(GroupHolder):
        def hold(self, entry: Entry, group: GroupId, *, make: bool) -> HeldGroup | None:
            held = super().hold(entry, group, make=make)
            if held is not None:
                held.__class__, held.machine.__class__ = hold, machine
            return held

    return GroupDesign(coordinator=partial(GroupCoordinator, holder=Holder))


GROUP_BUGS: Iterable[tuple[str, GroupDesign, tuple[str, ...]]] = (
    ("endless-member-lease", GroupDesign(member_lease=EndlessLease), (ONE_OWNER,)),
    ("commit-of-any-version", GroupDesign(registry=_with_claims(CommitsAnyVersion)), (STALE_COMMIT,)),
    ("claim-by-force", GroupDesign(registry=_with_claims(ClaimsByForce)), (ONE_OWNER, STALE_COMMIT)),
    ("commit-unfenced", _clients(CommitsUnfenced), (STALE_COMMIT, ONE_COORDINATOR)),
    ("reply-before-store", _clients(RepliesFirst), (STORED_FIRST,)),
    ("commit-of-any-generation", _clients(machine=AnyGeneration), (STALE_COMMIT,)),
    ("group-left-alone", GroupDesign(coordinator=LeavesGroupsAlone), (ABANDONED, TAKEN_OVER)),
    ("delete-in-two-steps", GroupDesign(coordinator=DeletesInTwoSteps), (KEPT,)),
    ("offsets-of-a-former-topic", GroupDesign(coordinator=AnswersForAnyTopic), (READ, NOTHING_SKIPPED)),
    ("claims-of-a-former-topic", GroupDesign(registry=_with_claims(ClaimsForAnyTopic)), (READ, NOTHING_SKIPPED)),
    ("former-process-unfenced", GroupDesign(registry=_registers_without(_is_former)), (ONE_INSTANCE,)),
    ("share-not-passed-on", GroupDesign(registry=_registers_without(_is_share)), (SAME_SHARE,)),
    ("owner-node-left-behind", GroupDesign(registry=_with_claims(LeavesOwnerNodes)), (PROGRESS, IN_TIME)),
    ("thread-ends-by-an-error", GroupDesign(loops=EndingLoops), (PROGRESS, ABANDONED, TAKEN_OVER, IN_TIME)),
    ("ticks-late", GroupDesign(coordinator=TicksLate), (IN_TIME,)),
    ("member-ends-in-silence", GroupDesign(member_loops=SilentLoops), (PROGRESS, IN_TIME)),
    ("coordinates-though-cut-off", GroupDesign(coordinator=CoordinatesThoughCutOff), (TAKEN_OVER,)),
    ("cleared-by-name", GroupDesign(coordinator=ClearsByName), (KEPT,)),
    ("offset-fetch-five-back", GroupDesign(coordinator=FetchesFiveBack), (READ,)),
)
"""Name, design, and the invariants that fit it."""
