"""Coordinates consumer groups: the handlers' port to them (handlers/group_port.py).

A commit of offsets passes its group twice: at once, so that an old generation hears of it without waiting, and when it
is written, so that none slips through that has become old meanwhile.

Groups of actors are coordinated by nobody. Tools see them all the same, and may commit for those that are empty,
through the broker that would coordinate the group, as they expect.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress

from raylog.broker.config import OFFSETS_COMMIT_LINGER_MS
from raylog.broker.config.groups import GroupRules
from raylog.broker.groups.actors import describe_actors, describe_old, remove_actors
from raylog.broker.groups.classic.claims import Claim, coordinator_of
from raylog.broker.groups.classic.described import DescribedGroup, ListedGroup, describe_machine, subscribed_topics
from raylog.broker.groups.classic.group import ClassicGroup, GroupState
from raylog.broker.groups.classic.messages import Identity, Join, Joined, Leaver, MemberIdIs, Sync, Synced
from raylog.broker.groups.classic.stored import StoredGroup
from raylog.broker.groups.holding.held import Claimant, read_claim, read_group
from raylog.broker.groups.holding.holding import GroupHolder, store_answers
from raylog.broker.groups.holding.keeper import GroupKeeper
from raylog.broker.groups.holding.table import Entry, GroupBusy
from raylog.broker.groups.listing import GroupListing
from raylog.broker.groups.offsets.committer import Commit, OffsetCommitter, Results
from raylog.broker.groups.offsets.empty import empty_since, forget_note, generation_of, newest_write, noted_groups
from raylog.coordination.groups import nodes as group_nodes
from raylog.coordination.groups.deletion import finish_deletion
from raylog.coordination.groups.kinds import GroupKind, SettledKind, check_group_id, read_kind, vacancy
from raylog.coordination.groups.offset_store import BY_NAME, Topics
from raylog.coordination.groups.offsets import CommittedOffset, RegistryOffsetStore
from raylog.coordination.host.clocks import monotonic_ms
from raylog.coordination.host.loops import Loops
from raylog.coordination.metadata.model import BrokerInfo, ClusterState
from raylog.coordination.store.port import BadVersion, MetadataStore, NoNode, Op
from raylog.coordination.store.unreadable import skipping
from raylog.protocol.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    NonEmptyGroup,
    NotCoordinator,
    RaylogError,
    UnknownMemberId,
)
from raylog.protocol.ids import (
    NO_MEMBER,
    BrokerEpoch,
    BrokerId,
    GroupId,
    MemberId,
    MonotonicMs,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)
from raylog.protocol.settings import Settings
from raylog.protocol.wire import consumer_protocol

__all__ = ["GroupCoordinator"]

_ATTEMPTS = 3


def _new_member_id(join: Join) -> MemberId:
    """Unique, and tells whose it is, as Kafka's do."""
    return MemberId(f"{join.client_id if join.instance_id is None else join.instance_id}-{uuid.uuid4()}")


class GroupCoordinator:
    """Of one broker, from its start to its stop. Any thread may call."""

    def __init__(
        self,
        broker_id: BrokerId,
        store: MetadataStore,
        *,
        epoch: Callable[[], BrokerEpoch],
        cluster: Callable[[], ClusterState],
        may_act: Callable[[], bool],
        rules: GroupRules,
        settings: Callable[[], Settings],
        loops: Loops,
        now_ms: Callable[[], MonotonicMs] = monotonic_ms,
        new_member_id: Callable[[Join], MemberId] = _new_member_id,
        holder: Callable[..., GroupHolder] = GroupHolder,
    ) -> None:
        """``epoch``: this broker's incarnation; ``may_act``: whether its lease is held; ``settings``: in force now;
        ``new_member_id``: one that nobody else ever has; ``holder`` makes what holds the groups.
        """
        self._new_member_id = new_member_id
        self._store = store
        self._cluster = cluster
        self._now_ms = now_ms
        self._rules = rules
        self._offsets = RegistryOffsetStore(store)
        self._holder = holder(
            store,
            claimant=lambda: Claimant(broker_id, epoch()),
            cluster=cluster,
            may_act=may_act,
            rules=rules,
            now_ms=now_ms,
            loops=loops,
        )
        linger_ms = lambda: settings()[OFFSETS_COMMIT_LINGER_MS]  # noqa: E731
        self._committer = OffsetCommitter(self._offsets, linger_ms, self._holder.lost, now_ms, loops)
        self.keeper = GroupKeeper(
            store, self._holder, me=lambda: Claim(broker_id, epoch()), cluster=cluster, now_ms=now_ms
        )
        self._listing = GroupListing(store, self._holder, self.keeper, cluster)

    def start(self) -> None:
        self._committer.start()
        self._holder.start()

    def stop(self) -> None:
        """Write what was committed until now, then coordinate nothing any more: who waits is told to look further."""
        self._committer.close()
        self._holder.stop()

    @property
    def next_tick_ms(self) -> MonotonicMs | None:
        """When the ticker has something to do next."""
        return self._holder.next_tick_ms

    @property
    def next_commit_ms(self) -> MonotonicMs | None:
        """When offsets are to be written next."""
        return self._committer.next_ms

    @property
    def held_count(self) -> int:
        """How many groups of Kafka clients this broker coordinates at the moment."""
        return self._holder.held_count

    # --- members ---

    def find_coordinator(self, group: GroupId) -> BrokerInfo:
        check_group_id(group)
        with store_answers():
            claim = read_claim(self._store, group).claim
        cluster = self._cluster()
        if not self._holder.may_act:  # others have its groups, or will
            cluster = cluster.without_broker(self._holder.claimant().broker)
        coordinator = coordinator_of(group, claim, cluster)
        if coordinator is None:
            raise CoordinatorNotAvailable("no live broker is known yet: ask again")
        return coordinator

    def join(self, group: GroupId, join: Join) -> Future[Joined | MemberIdIs]:
        answer: Future[Joined | MemberIdIs] = Future()
        with self._holder.enter(group) as entry:
            if self._holder.hold(entry, group, make=False) is None:  # a join that is refused makes no group
                self._check_first_join(group, join)
            held = self._holder.hold(entry, group, make=True)
            assert held is not None
            outcome = held.machine.join(join, answer, self._new_member_id(join), self._now_ms())
            self._holder.settle(entry, outcome)
        return answer

    def _check_first_join(self, group: GroupId, join: Join) -> None:
        self._rules.check_session_timeout(join.session_timeout_ms)
        if join.member_id != NO_MEMBER:
            raise UnknownMemberId(f"group {group} has no members: join it without a member id")
        ClassicGroup(group, self._rules, StoredGroup(), self._now_ms()).check_join(join)

    def sync(self, group: GroupId, sync: Sync) -> Future[Synced]:
        answer: Future[Synced] = Future()
        with self._holder.enter(group) as entry:
            held = self._holder.hold_known(entry, group)
            self._holder.settle(entry, held.machine.sync(sync, answer, self._now_ms()))
        return answer

    def heartbeat(self, group: GroupId, who: Identity) -> None:
        with self._holder.enter(group) as entry:
            self._holder.hold_known(entry, group).machine.heartbeat(who, self._now_ms())

    def leave(self, group: GroupId, leavers: Sequence[Leaver]) -> Sequence[RaylogError | None]:
        with self._holder.enter(group) as entry:
            held = self._holder.hold(entry, group, make=False)
            if held is None:
                return remove_actors(self._store, group, leavers)
            outcome, results = held.machine.leave(leavers, self._now_ms())
            self._holder.settle(entry, outcome)
            if held.lost is not None:
                raise held.lost
        return results

    # --- offsets ---

    def commit_offsets(
        self,
        group: GroupId,
        who: Identity,
        offsets: Mapping[TopicPartition, CommittedOffset],
        topics: Mapping[TopicName, TopicId],
    ) -> Future[Results]:
        def fence() -> Sequence[Op]:
            with self._holder.enter(group) as entry:
                return self._commit_fence(entry, group, who)

        fence()
        answer: Future[Results] = Future()
        if offsets:
            self._committer.submit(Commit(group, offsets, topics, fence, answer))
        else:
            answer.set_result({})
        return answer

    def fetch_offsets(
        self, group: GroupId, partitions: Sequence[TopicPartition] | None, topics: Topics = BY_NAME
    ) -> Mapping[TopicPartition, CommittedOffset | RaylogError]:
        with self._holder.enter(group) as entry:
            self._holder.check_coordinates(entry, group)
            kind = read_kind(self._store, group) if entry.held is None else None
            if kind is not None and kind.is_deleted:
                return {}
        with store_answers():
            found = self._offsets.read(group, partitions, topics)
        return {**found.committed, **found.unreadable}

    def delete_offsets(
        self, group: GroupId, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, RaylogError | None]:
        with self._holder.enter(group) as entry:
            for _ in range(_ATTEMPTS):
                seen = self._offsets.look(group, partitions)  # before the members: who comes later claims what was seen
                described = self._describe(entry, group)
                if described.members and described.protocol_type != consumer_protocol.PROTOCOL_TYPE:
                    raise NonEmptyGroup(f"only the members of group {group} know what they read: stop them first")
                subscribed = subscribed_topics(described)
                results: dict[TopicPartition, RaylogError | None] = dict.fromkeys(partitions)
                for tp in partitions:
                    if subscribed is None or tp.topic in subscribed:
                        results[tp] = GroupSubscribedToTopic(f"group {group} reads {tp.topic}: stop its members first")
                free = [tp for tp, error in results.items() if error is None]
                try:
                    self._offsets.forget(group, seen, free, self._fence(entry, group))
                except (BadVersion, NoNode):
                    continue  # claimed or committed meanwhile: ask again who reads it
                return results
        raise CoordinatorNotAvailable(f"offsets of group {group} change all the time: stop who commits them")

    # --- offsets that nobody needs (see retention); each of these raises GroupBusy ---

    def unneeded(self, group: GroupId) -> Mapping[TopicPartition, CommittedOffset]:
        """Commits for partitions of topics that no member reads."""
        with self._holder.enter(group, wait=False) as entry:
            return self._unneeded(entry, group)

    def forget(self, group: GroupId, commits: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Forget those of the commits that stand still and are not needed now, either."""
        with self._holder.enter(group, wait=False) as entry:
            seen = self._offsets.look(group, list(commits))
            unneeded = self._unneeded(entry, group)
            still = [tp for tp, committed in commits.items() if unneeded.get(tp) == committed]
            self._offsets.forget(group, seen, still, self._fence(entry, group))

    def groups_with(self, topics: Collection[TopicName]) -> Collection[GroupId]:
        """Those coordinated here that have committed for topics of these names, or whose members own some of them."""
        groups = [listed.group for listed in self.list_groups()]
        with store_answers():
            return group_nodes.groups_with(self._store, groups, topics)

    def forget_deleted_topics(self, group: GroupId) -> Sequence[TopicPartition]:
        """Forget the offsets that the group has for topics that are deleted; answers which."""
        with self._holder.enter(group, wait=False) as entry:
            self._holder.check_coordinates(entry, group)
            return self._offsets.forget_deleted_topics(group, self._fence(entry, group))

    def noted_empty(self) -> Collection[GroupId]:
        """Groups for which :meth:`empty_since` has noted a time."""
        with store_answers():
            return noted_groups(self._store)

    def empty_since(self, group: GroupId, untimed: Iterable[TopicPartition], now_ms: TimestampMs) -> TimestampMs | None:
        """When the group was found first without members, and ``untimed`` as they are, by the wall clock; None when it
        has members, which is noted.
        """
        with self._holder.enter(group, wait=False) as entry:
            if self._describe(entry, group).state != GroupState.EMPTY:
                forget_note(self._store, group, self._fence(entry, group))
                return None
            if entry.held is not None:
                generation = entry.held.machine.generation
            else:
                generation = generation_of(self._store, group, read_kind(self._store, group))
            written = newest_write(self._store, group, untimed)
            return empty_since(self._store, group, generation, written, now_ms, self._fence(entry, group))

    def forget_bare(self, group: GroupId) -> bool:
        """Forget the group if it has neither members, nor offsets, nor ids that are given out to join with."""
        with self._holder.enter(group, wait=False) as entry:
            is_empty = self._describe(entry, group).state == GroupState.EMPTY
            if entry.held is not None and not entry.held.was_taken():
                is_empty = entry.held.is_idle
            if not is_empty or not group_nodes.delete_if_bare(self._store, group, self._fence(entry, group)):
                return False
            self._holder.drop(entry)
            return True

    def _unneeded(self, entry: Entry, group: GroupId) -> Mapping[TopicPartition, CommittedOffset]:
        subscribed = subscribed_topics(self._describe(entry, group))
        if subscribed is None:
            return {}
        committed = self._offsets.read(group).committed
        return {tp: found for tp, found in committed.items() if tp.topic not in subscribed}

    def _commit_fence(self, entry: Entry, group: GroupId, who: Identity) -> Sequence[Op]:
        """What the multi of a commit must check; raises what is wrong with who commits."""
        if self._holder.hold(entry, group, make=False) is None:
            kind = read_kind(self._store, group)
            if not who.is_outside and not self._is_there(group, kind):
                raise GroupIdNotFound(f"there is no group {group}: join it, or commit without a generation")
            if who.is_outside and kind is not None and kind.kind is GroupKind.ACTORS:
                return vacancy(self._store, group, kind)
            if who.is_outside:
                self._holder.hold(entry, group, make=True)
        held = self._holder.hold_known(entry, group)
        held.machine.check_commit(who, self._now_ms())
        return held.fence()

    def _fence(self, entry: Entry, group: GroupId) -> Sequence[Op]:
        """What a change of the group must check that no member asked for."""
        held = self._holder.hold(entry, group, make=False)
        if held is not None:
            return held.fence()
        kind = read_kind(self._store, group)
        return () if kind is None else (kind.check(group),)

    # --- what tools ask ---

    def describe(self, group: GroupId) -> DescribedGroup:
        with self._holder.enter(group) as entry:
            return self._describe(entry, group)

    def list_groups(self) -> Sequence[ListedGroup]:
        """The groups that this broker coordinates or is to, in order: see listing."""
        with store_answers():
            listed = self._listing.list()
        self._holder.check_may_act()  # else it would seem that there are none
        return listed

    def delete(self, group: GroupId) -> None:
        with self._holder.enter(group) as entry:
            self._finish_deletion(entry, group)
            if self._describe(entry, group).state != GroupState.EMPTY:
                raise NonEmptyGroup(f"group {group} has members: stop them first")
            group_nodes.delete_group(self._store, group, self._fence(entry, group))
            self._holder.drop(entry)

    def finish_deletions(self) -> None:
        """Remove what is left of deleted groups that are coordinated here: who deleted them died, or met an error."""
        with store_answers():
            deleted = group_nodes.deleted_groups(self._store)
        for group in deleted:
            with skipping(), suppress(NotCoordinator, GroupBusy), self._holder.enter(group, wait=False) as entry:
                self._finish_deletion(entry, group)

    def _finish_deletion(self, entry: Entry, group: GroupId) -> None:
        self._holder.check_coordinates(entry, group)
        kind = read_kind(self._store, group)
        if kind is not None and kind.is_deleted:
            finish_deletion(self._store, group, kind.version)

    def _is_there(self, group: GroupId, kind: SettledKind | None) -> bool:
        """One of old tools has no kind."""
        return group_nodes.exists(self._store, group) if kind is None else not kind.is_deleted

    def _describe(self, entry: Entry, group: GroupId) -> DescribedGroup:
        if entry.held is not None and not entry.held.was_taken():
            return describe_machine(entry.held.machine)
        self._holder.check_coordinates(entry, group)
        kind = read_kind(self._store, group)
        if not self._is_there(group, kind):
            raise GroupIdNotFound(f"there is no group {group}")
        if kind is None:
            return describe_old(self._store, group)
        if kind.kind is GroupKind.ACTORS:
            return describe_actors(self._store, group, self._cluster().topics)
        stored = read_group(self._store, group)
        return describe_machine(ClassicGroup(group, GroupRules(), stored, self._now_ms()))
