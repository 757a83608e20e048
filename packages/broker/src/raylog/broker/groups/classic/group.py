"""◆ A group of Kafka clients as its coordinator keeps it: the classic protocol's state machine.

                        a member joins                 all have joined, or the time is over
    EMPTY ────────────────────────────► PREPARING_REBALANCE ─────────────────► COMPLETING_REBALANCE
      ▲                                   ▲            │                          │      │
      │ the last member is gone           │            └── nobody has joined ─► EMPTY    │ the leader has assigned
      └── STABLE, COMPLETING_REBALANCE    └── a member joins, leaves, or is lost ────────┴─► STABLE

Each call takes one thing that happened and answers an :class:`Outcome`: replies to requests that waited, and, when
something must outlive the coordinator, the group to be stored *before* they are sent. Where storing fails, the machine
is ahead of the store and has to be thrown away: another coordinator goes on from what was stored.

A generation's assignment is stored with it: a coordinator that takes over finds a stable group, and its members notice
nothing. A rebalance under way is not: its members hear that they or the generation are unknown, and join again.

Source: Kafka's group membership protocol (KIP-62: rebalance and session timeouts, KIP-134: initial delay, KIP-345:
static members, KIP-394: member ids first, KIP-814: a static leader that came again).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from raylog.broker.config.groups import GroupRules
from raylog.broker.groups.classic.members import Member, Members
from raylog.broker.groups.classic.messages import (
    NOBODY,
    Identity,
    Join,
    Joined,
    Leaver,
    MemberIdIs,
    Outcome,
    Reply,
    Sync,
    Synced,
    Token,
)
from raylog.broker.groups.classic.stored import StoredGroup
from raylog.protocol.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    RaylogError,
    RebalanceInProgress,
    UnknownMemberId,
)
from raylog.protocol.ids import NO_MEMBER, Generation, GroupId, MemberId, MonotonicMs

__all__ = ["ClassicGroup", "GroupState"]

_NOT = MonotonicMs(0)


class GroupState(StrEnum):
    """Kafka's names, as DescribeGroups tells them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


class ClassicGroup:
    """One group. One thread at a time calls it; ``now_ms`` never goes back."""

    def __init__(self, group: GroupId, rules: GroupRules, stored: StoredGroup, now_ms: MonotonicMs) -> None:
        """``stored``: as another coordinator left it. Its members' sessions begin anew."""
        self.id = group
        self.state = GroupState.STABLE if stored.members else GroupState.EMPTY
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type
        self.protocol = stored.protocol
        self.leader = stored.leader
        self.members = Members.stored(stored, now_ms)
        self._rules = rules
        self._pending: dict[MemberId, MonotonicMs] = {}
        """Ids that were given out and not joined with yet, and until when they may be."""
        self._rebalance_ends_ms = _NOT
        """Preparing: when who has not joined is left out; _NOT if nobody had. Completing: when who has not synced."""
        self._delay_ends_ms = _NOT
        """While preparing the first generation after an empty one: not complete before (KIP-134)."""
        self._replies: list[tuple[Token, Reply]] = []
        self._store: StoredGroup | None = None

    # --- what members ask ---

    def join(self, join: Join, token: Token, new_id: MemberId, now_ms: MonotonicMs) -> Outcome:
        """``new_id``: never used before; what the member will be called if it has no id yet."""
        try:
            former = self.check_join(join)
            if join.member_id == NO_MEMBER:
                self._join_anew(former, join, token, new_id, now_ms)
            else:
                self._join_again(former, join, token, now_ms)
        except RaylogError as error:
            self._reply(token, error)
            if isinstance(error, GroupMaxSizeReached):
                self._forget(join.member_id, now_ms)
        return self._outcome()

    def check_join(self, join: Join) -> Member | None:
        """Who joins again; None: a new member. Raises what is wrong with the request, whenever it comes."""
        self._rules.check_session_timeout(join.session_timeout_ms)
        self.members.check_room(join, self._rules.max_size, joining=self.state is GroupState.PREPARING_REBALANCE)
        self.members.check_protocols(join, self.protocol_type)
        if join.member_id == NO_MEMBER:
            return self.members.of_instance(join.instance_id)
        if join.instance_id is None and join.member_id in self._pending:
            return None
        return self.members.find(join.member_id, join.instance_id)

    def sync(self, sync: Sync, token: Token, now_ms: MonotonicMs) -> Outcome:
        """The leader's settles the generation; the others' wait for it."""
        try:
            member = self._current(sync.who)
            self._check_protocol(sync)
            if self.state is GroupState.PREPARING_REBALANCE:
                raise self._under_way()
        except RaylogError as error:
            self._reply(token, error)
            return self._outcome()
        member.heard(now_ms)
        member.must_sync = False
        if self.state is GroupState.STABLE:
            self._reply(token, self._synced(member))
            return self._outcome()
        if member.syncing is not None:
            self._reply(member.syncing, RebalanceInProgress("the member has sent another SyncGroup since"))
        member.syncing = token
        if member.id == self.leader:
            self._assign(dict(sync.assignments), now_ms)
        return self._outcome()

    def heartbeat(self, who: Identity, now_ms: MonotonicMs) -> None:
        """The member lives. Raises RebalanceInProgress when it has to join again, and as :meth:`sync` does."""
        member = self._current(who)
        member.heard(now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise self._under_way()

    def leave(self, leavers: Sequence[Leaver], now_ms: MonotonicMs) -> tuple[Outcome, tuple[RaylogError | None, ...]]:
        """The outcome, and for each leaver what was wrong, in order."""
        before = len(self.members)
        results = tuple(self._leave(leaver) for leaver in leavers)
        if len(self.members) < before:
            self._changed(now_ms)
        self._try_complete(now_ms)  # they may have been who it waited for
        return self._outcome(), results

    def check_commit(self, who: Identity, now_ms: MonotonicMs) -> None:
        """Check that offsets may be committed. While the group is empty a request from outside may commit, whatever
        member or instance it names.

        Raises UnknownMemberId, FencedInstanceId, IllegalGeneration; RebalanceInProgress where the member has the new
        generation and not its assignment yet. While members are still to join, the old generation's commits count.
        """
        if who.is_outside and not len(self.members):
            return
        if who == NOBODY:
            raise UnknownMemberId(f"group {self.id} has members: only they commit its offsets")
        member = self._current(who)
        member.heard(now_ms)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise RebalanceInProgress(f"group {self.id} is being rebalanced: commit once you have your partitions")

    def tick(self, now_ms: MonotonicMs) -> Outcome:
        """Time has passed: sessions end, and so does waiting for those who don't come."""
        self._pending = {member_id: until for member_id, until in self._pending.items() if until > now_ms}
        must_sync = self.state is not GroupState.PREPARING_REBALANCE and self._rebalance_ends_ms <= now_ms
        silent = (m for m in self.members if m.expires_ms <= now_ms and m.joining is None and m.syncing is None)
        lost = {m.id: m for m in (*silent, *(m for m in self.members if must_sync and m.must_sync))}.values()
        for member in lost:
            self._remove(member)
        if lost:
            self._changed(now_ms)
        self._try_complete(now_ms)
        return self._outcome()

    def next_tick_ms(self) -> MonotonicMs | None:
        """When :meth:`tick` has something to do if nothing else happens; None: never."""
        due = [*self._pending.values()]
        due += [m.expires_ms for m in self.members if m.joining is None and m.syncing is None]
        if self.state is GroupState.PREPARING_REBALANCE:
            if ends := self._delay_ends_ms or self._rebalance_ends_ms:
                due.append(ends)
        elif any(member.must_sync for member in self.members):
            due.append(self._rebalance_ends_ms)
        return min(due, default=None)

    def unload(self, error: RaylogError) -> Outcome:
        """This coordinator is none any more: everyone who waits hears ``error``."""
        for member in self.members:
            self._answer_waiting(member, error)
        return self._outcome()

    # --- joining ---

    def _join_anew(
        self, former: Member | None, join: Join, token: Token, new_id: MemberId, now_ms: MonotonicMs
    ) -> None:
        if former is not None:
            self._come_back(former, join, token, new_id, now_ms)
            return
        if join.needs_id and join.instance_id is None:
            self._pending[new_id] = MonotonicMs(now_ms + join.session_timeout_ms)
            self._reply(token, MemberIdIs(new_id))
            return
        self._add(Member.of(new_id, join, now_ms), join, token, now_ms)

    def _join_again(self, member: Member | None, join: Join, token: Token, now_ms: MonotonicMs) -> None:
        if member is None:
            del self._pending[join.member_id]
            self._add(Member.of(join.member_id, join, now_ms), join, token, now_ms)
            return
        is_settled = self.state is GroupState.COMPLETING_REBALANCE or (
            self.state is GroupState.STABLE and member.id != self.leader
        )
        if is_settled and member.protocols == join.protocols:
            member.heard(now_ms)
            self._reply(token, self._joined(member))  # its answer was lost, or it asks in vain
            return
        member.update(join, now_ms)
        self._wait_for_others(member, token)
        self._prepare(now_ms)

    def _add(self, member: Member, join: Join, token: Token, now_ms: MonotonicMs) -> None:
        if not len(self.members):
            self.protocol_type, self.leader = join.protocol_type, member.id
        self.members.add(member)
        self._wait_for_others(member, token)
        self._prepare(now_ms)

    def _come_back(self, former: Member, join: Join, token: Token, new_id: MemberId, now_ms: MonotonicMs) -> None:
        """A static member has started again: it goes on where it was, without a rebalance if it wants the same."""
        fenced = FencedInstanceId(f"a newer consumer has joined with group.instance.id {join.instance_id!r}")
        self._answer_waiting(former, fenced)
        same = self.members.wants_the_same(former, join, self.protocol)
        old_leader, was_leader = self.leader, former.id == self.leader
        self.members.rename(former, new_id)
        if was_leader:
            self.leader = new_id
        former.update(join, now_ms)
        if self.state is not GroupState.STABLE or not same:
            self._wait_for_others(former, token)
            self._prepare(now_ms)
            return
        joined = self._joined(former)
        if was_leader and join.can_skip_assignment:
            joined = replace(joined, skip_assignment=True)
        elif was_leader:  # an older client would assign anew if it knew that it leads
            joined = replace(joined, leader=old_leader, members=())
        self._store = self._stored()
        self._reply(token, joined)

    def _wait_for_others(self, member: Member, token: Token) -> None:
        if member.joining is not None:
            self._reply(member.joining, RebalanceInProgress("the member has sent another JoinGroup since"))
        member.joining = token

    # --- rebalancing ---

    def _changed(self, now_ms: MonotonicMs) -> None:
        """Members are gone: the others share anew."""
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare(now_ms)

    def _prepare(self, now_ms: MonotonicMs) -> None:
        """A rebalance begins, or a member has come while it is under way."""
        timeout_ms = max((member.rebalance_timeout_ms for member in self.members), default=0)
        if self.state is GroupState.EMPTY:
            self._delay_ends_ms = MonotonicMs(now_ms + min(self._rules.initial_rebalance_delay_ms, timeout_ms))
        elif self.state is GroupState.PREPARING_REBALANCE and self._delay_ends_ms:
            longest = self._rebalance_ends_ms  # each newcomer prolongs it, up to the first one's time
            self._delay_ends_ms = min(MonotonicMs(now_ms + self._rules.initial_rebalance_delay_ms), longest)
        if self.state is not GroupState.PREPARING_REBALANCE or self._rebalance_ends_ms == _NOT:
            self._rebalance_ends_ms = MonotonicMs(now_ms + timeout_ms)
            for member in self.members:
                self._answer_sync(member, self._under_way(), now_ms)
                if self.state is GroupState.COMPLETING_REBALANCE:
                    member.assignment = b""  # that of the generation before
        self.state = GroupState.PREPARING_REBALANCE
        self._try_complete(now_ms)

    def _try_complete(self, now_ms: MonotonicMs) -> None:
        """Begin the next generation, if all who are to take part in it have joined or their time is over."""
        if self.state is not GroupState.PREPARING_REBALANCE or now_ms < self._delay_ends_ms:
            return
        is_first, self._delay_ends_ms = self._delay_ends_ms != _NOT, _NOT  # it waits for no id that was given out
        absent = [member for member in self.members if member.joining is None]
        if (absent or (self._pending and not is_first)) and now_ms < self._rebalance_ends_ms:
            return
        for member in absent:
            if not member.is_static:  # a static one keeps its place until its session ends
                self._remove(member)
        joined = [member for member in self.members if member.joining is not None]
        if len(self.members) and not joined:
            self._rebalance_ends_ms = _NOT
            return
        self.generation = Generation(self.generation + 1)
        if not joined:
            self.state, self.protocol, self.leader = GroupState.EMPTY, "", NO_MEMBER
            self._store = self._stored()
            return
        self.state = GroupState.COMPLETING_REBALANCE
        self.protocol = self.members.elect_protocol()
        if self.leader not in self.members or self.members[self.leader].joining is None:
            self.leader = joined[0].id
        self._rebalance_ends_ms = MonotonicMs(now_ms + max(member.rebalance_timeout_ms for member in self.members))
        for member in self.members:
            member.must_sync = True
        for member in joined:
            self._reply(member.joining, self._joined(member))
            member.joining = None
            member.heard(now_ms)

    def _assign(self, assignments: dict[MemberId, bytes], now_ms: MonotonicMs) -> None:
        """The leader has decided: the generation is settled once this is stored."""
        self.state = GroupState.STABLE
        for member in self.members:
            member.assignment = assignments.get(member.id, b"")
            self._answer_sync(member, self._synced(member), now_ms)
        self._store = self._stored()

    # --- members ---

    def _current(self, who: Identity) -> Member:
        """The member, of this very generation."""
        member = self.members.identify(who)
        if who.generation != self.generation:
            raise IllegalGeneration(
                f"group {self.id} is in generation {self.generation}, member {who.member_id} in {who.generation}"
            )
        return member

    def _check_protocol(self, sync: Sync) -> None:
        for given, ours in ((sync.protocol_type, self.protocol_type), (sync.protocol, self.protocol)):
            if given is not None and given != ours:
                raise InconsistentGroupProtocol(f"group {self.id} works with {ours!r}, the member with {given!r}")

    def _leave(self, leaver: Leaver) -> RaylogError | None:
        try:
            if self._pending.pop(leaver.member_id, None) is None:
                self._remove(self.members.leaving(leaver))
        except RaylogError as error:
            return error
        return None

    def _remove(self, member: Member) -> None:
        self._answer_waiting(member, UnknownMemberId(f"member {member.id} is not in group {self.id} any more"))
        self.members.remove(member)

    def _forget(self, member_id: MemberId, now_ms: MonotonicMs) -> None:
        """The group has no room for it: the others do not wait for it."""
        self._pending.pop(member_id, None)
        if member_id in self.members:
            self._remove(self.members[member_id])
        self._try_complete(now_ms)

    def _under_way(self) -> RebalanceInProgress:
        return RebalanceInProgress(f"group {self.id} is being rebalanced: join again")

    def _answer_waiting(self, member: Member, error: RaylogError) -> None:
        if member.joining is not None:
            self._reply(member.joining, error)
            member.joining = None
        if member.syncing is not None:
            self._reply(member.syncing, error)
            member.syncing = None

    def _answer_sync(self, member: Member, reply: Reply, now_ms: MonotonicMs) -> None:
        """Its session, which did not pass while it waited here, begins anew: it can ask again only now."""
        if member.syncing is not None:
            self._reply(member.syncing, reply)
            member.syncing = None
            member.heard(now_ms)

    # --- answers ---

    def _joined(self, member: Member) -> Joined:
        others = self.members.as_told(self.protocol) if member.id == self.leader else ()
        return Joined(member.id, self.generation, self.protocol_type, self.protocol, self.leader, others)

    def _synced(self, member: Member) -> Synced:
        return Synced(self.protocol_type, self.protocol, member.assignment)

    def _stored(self) -> StoredGroup:
        kept = self.members.to_store(self.protocol)
        return StoredGroup(self.generation, self.protocol_type, self.protocol, self.leader, kept)

    def _reply(self, token: Token, reply: Reply) -> None:
        self._replies.append((token, reply))

    def _outcome(self) -> Outcome:
        outcome = Outcome(tuple(self._replies), self._store)
        self._replies, self._store = [], None
        return outcome
