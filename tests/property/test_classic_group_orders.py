"""The classic group under any order of events: no request is left unanswered, no partition has two owners in a
generation, and what members were told was stored before."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from raylog.broker.config.groups import GroupRules
from raylog.broker.groups.classic.group import ClassicGroup, GroupState
from raylog.broker.groups.classic.messages import (
    Identity,
    Join,
    Joined,
    Leaver,
    MemberIdIs,
    Outcome,
    Protocol,
    Reply,
    Sync,
    Synced,
)
from raylog.broker.groups.classic.stored import StoredGroup
from raylog.protocol.errors import (
    FencedInstanceId,
    IllegalGeneration,
    NotCoordinator,
    RaylogError,
    RebalanceInProgress,
    UnknownMemberId,
)
from raylog.protocol.ids import NO_GENERATION, NO_MEMBER, Generation, GroupId, InstanceId, MemberId, MonotonicMs

GROUP = GroupId("g")
RULES = GroupRules(min_session_timeout_ms=10, max_session_timeout_ms=60_000, initial_rebalance_delay_ms=500)
SESSIONS_MS, REBALANCES_MS = (6_000, 10), (9_000, 1)
PARTITIONS = range(12)
CLIENTS = range(4)
client = st.sampled_from(CLIENTS)


@dataclass
class Client:
    """A consumer with one request under way at most, as real ones have; it may do the right thing, or any other."""

    instance_id: InstanceId | None
    member_id: MemberId = NO_MEMBER
    generation: Generation = NO_GENERATION
    joined: Joined | None = None
    waits: bool = False
    owns: frozenset[int] = frozenset()
    protocols: tuple[Protocol, ...] = (Protocol("range", b"topics"), Protocol("roundrobin", b"topics"))

    @property
    def who(self) -> Identity:
        return Identity(self.member_id, self.generation, self.instance_id)


@dataclass
class Request:
    client: Client
    kind: str
    answered: list[Reply] = field(default_factory=list)


class Groups(RuleBasedStateMachine):
    """Four clients, two of them static, of one coordinator at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000
        self.stored = StoredGroup()
        self.group = ClassicGroup(GROUP, RULES, self.stored, MonotonicMs(self.now))
        self.ids = count()
        self.requests: list[Request] = []
        self.clients = [Client(InstanceId(f"i{n}") if n % 2 else None) for n in CLIENTS]
        self.owners: dict[Generation, dict[int, InstanceId | MemberId]] = {}
        self.kept: dict[Generation, tuple[bytes, ...]] = {}

    # --- the coordinator's shell ---

    def carry_out(self, outcome: Outcome, stores: bool = True) -> None:
        if outcome.store is not None:
            if not stores:
                self.fail_over(outcome)
                return
            assert outcome.store.generation >= self.stored.generation
            if outcome.store.members:
                assignments = tuple(sorted(member.assignment for member in outcome.store.members))
                assert self.kept.setdefault(outcome.store.generation, assignments) == assignments
            self.stored = outcome.store
        for token, reply in outcome.replies:
            assert isinstance(token, Request)
            token.answered.append(reply)
            self.hear(token, reply)

    def fail_over(self, outcome: Outcome | None = None) -> None:
        """Another coordinator takes over; whoever waited at this one asks again."""
        lost = NotCoordinator("another broker coordinates the group")
        waiting = [] if outcome is None else [token for token, _ in outcome.replies]
        for token in (*waiting, *(token for token, _ in self.group.unload(lost).replies)):
            assert isinstance(token, Request)
            token.answered.append(lost)
            token.client.waits = False
        self.group = ClassicGroup(GROUP, RULES, self.stored, MonotonicMs(self.now))

    def hear(self, request: Request, reply: Reply) -> None:
        who = request.client
        who.waits = False
        match reply:
            case MemberIdIs(member_id):
                who.member_id = member_id
            case Joined():
                assert reply.generation >= who.generation
                who.member_id, who.generation, who.joined = reply.member_id, reply.generation, reply
                who.owns = frozenset()
            case Synced():
                who.owns = frozenset(reply.assignment)
                kept = {member.id: member.assignment for member in self.stored.members}
                assert self.stored.generation == who.generation
                assert kept[who.member_id] == reply.assignment
                owners = self.owners.setdefault(who.generation, {})
                name = who.instance_id or who.member_id
                assert all(owners.setdefault(partition, name) == name for partition in who.owns)
            case UnknownMemberId() | FencedInstanceId():
                who.member_id, who.generation, who.joined, who.owns = NO_MEMBER, NO_GENERATION, None, frozenset()
            case RaylogError():
                assert isinstance(reply, RebalanceInProgress | IllegalGeneration), reply

    def ask(self, n: int, kind: str) -> Request:
        request = Request(self.clients[n], kind)
        self.requests.append(request)
        request.client.waits = True
        return request

    # --- what happens ---

    @rule(
        n=client,
        stores=st.booleans(),
        more=st.booleans(),
        session_ms=st.sampled_from(SESSIONS_MS),
        rebalance_ms=st.sampled_from(REBALANCES_MS),
    )
    def join(
        self, n: int, stores: bool, more: bool, session_ms: int = SESSIONS_MS[0], rebalance_ms: int = REBALANCES_MS[0]
    ) -> None:
        who = self.clients[n]
        if who.waits:
            return
        protocols = (*who.protocols, Protocol("more", b"")) if more else who.protocols
        join = Join(who.member_id, who.instance_id, "client", "host", session_ms, rebalance_ms, "consumer", protocols)
        token = self.ask(n, "join")
        self.carry_out(self.group.join(join, token, MemberId(f"m{next(self.ids)}"), MonotonicMs(self.now)), stores)

    @rule(n=client, stores=st.booleans())
    def sync(self, n: int, stores: bool) -> None:
        who = self.clients[n]
        if who.waits or who.joined is None:
            return
        names = [member.member_id for member in who.joined.members]
        shares = {name: bytes(p for p in PARTITIONS if p % len(names) == i) for i, name in enumerate(names)}
        sync = Sync(who.who, tuple(shares.items()), who.joined.protocol_type, who.joined.protocol)
        self.carry_out(self.group.sync(sync, self.ask(n, "sync"), MonotonicMs(self.now)), stores)

    @rule(n=client)
    def restart(self, n: int) -> None:
        """The client dies and starts again: it knows nothing of its requests."""
        self.clients[n] = Client(self.clients[n].instance_id)

    @rule(n=client)
    def heartbeat(self, n: int) -> None:
        who = self.clients[n]
        if who.joined is None:
            return
        try:
            self.group.heartbeat(who.who, MonotonicMs(self.now))
            assert who.member_id in self.group.members
        except RebalanceInProgress:
            assert self.group.state is GroupState.PREPARING_REBALANCE
        except IllegalGeneration:
            assert who.generation != self.group.generation
        except (UnknownMemberId, FencedInstanceId):
            who.member_id, who.generation, who.joined, who.owns = NO_MEMBER, NO_GENERATION, None, frozenset()

    @rule(n=client)
    def commit(self, n: int) -> None:
        who = self.clients[n]
        try:
            self.group.check_commit(who.who, MonotonicMs(self.now))
        except RaylogError:
            return
        assert who.generation == self.group.generation or not len(self.group.members)

    @rule(n=client)
    def leave(self, n: int) -> None:
        who = self.clients[n]
        if who.waits or not who.member_id:
            return
        outcome, _ = self.group.leave([Leaver(who.member_id, who.instance_id)], MonotonicMs(self.now))
        self.carry_out(outcome)
        self.clients[n] = Client(who.instance_id)

    @rule(ms=st.sampled_from((1, 9, 499, 500, 3_000, 6_001, 9_001)), stores=st.booleans())
    def time_passes(self, ms: int, stores: bool) -> None:
        self.now += ms
        self.tick(stores)

    def tick(self, stores: bool = True) -> None:
        self.carry_out(self.group.tick(MonotonicMs(self.now)), stores)
        due = self.group.next_tick_ms()
        assert due is None or due > self.now, "it would tick for ever"

    @rule()
    def coordinator_changes(self) -> None:
        self.fail_over()

    # --- what must hold ---

    @invariant()
    def nobody_is_answered_twice(self) -> None:
        assert all(len(request.answered) <= 1 for request in self.requests)

    @invariant()
    def the_leader_is_a_member(self) -> None:
        if self.group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert self.group.leader in self.group.members
            assert Counter(member.id for member in self.group.members)[self.group.leader] == 1
        assert (self.group.state is GroupState.EMPTY) <= (len(self.group.members) == 0)

    def teardown(self) -> None:
        """When all clients fall silent, everybody is answered, and the group is empty and stays so."""
        for _ in range(1_000):
            due = self.group.next_tick_ms()
            if due is None:
                break
            self.now = due
            self.tick()
        assert self.group.state is GroupState.EMPTY
        assert self.group.next_tick_ms() is None
        assert all(request.answered for request in self.requests)


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_sync_still_waiting_when_leader_expires_ends_quietly() -> None:
    """An order that random runs once found: the leader falls silent at the very end of the waiting member's session."""
    groups = Groups()
    groups.join(0, stores=False, more=False)
    groups.join(1, stores=False, more=False)
    groups.join(3, stores=False, more=False)
    groups.commit(0)
    groups.time_passes(1, stores=False)
    groups.time_passes(499, stores=False)
    groups.leave(0)
    groups.sync(3, stores=False)
    groups.teardown()
