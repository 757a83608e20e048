"""The classic group's machine in Kafka's own words: who is answered what, and when."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

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
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    RebalanceInProgress,
    UnknownMemberId,
)
from raylog.protocol.ids import NO_GENERATION, NO_MEMBER, Generation, GroupId, InstanceId, MemberId, MonotonicMs
from raylog.protocol.wire.consumer_protocol import encode_subscription

RULES = GroupRules(initial_rebalance_delay_ms=3_000, max_size=3)
NOBODY = Identity(NO_MEMBER, NO_GENERATION)


class Cluster:
    """A group whose requests are named by words, and its answers by these."""

    def __init__(self, rules: GroupRules = RULES) -> None:
        self.now = 0
        self.stored = StoredGroup()
        self.rules = rules
        self.group = ClassicGroup(GroupId("g"), rules, self.stored, MonotonicMs(0))
        self.answers: dict[object, Reply] = {}
        self._ids = count(1)

    def take(self, outcome: Outcome) -> None:
        self.stored = outcome.store or self.stored
        for token, reply in outcome.replies:
            assert token not in self.answers
            self.answers[token] = reply

    def join(self, token: str, member_id: str = "", instance: str | None = None, **more: Any) -> Reply | None:
        wishes: dict[str, Any] = {
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": (Protocol("range", b"t"),),
            "needs_id": False,
        } | more
        name = InstanceId(instance) if instance else None
        join = Join(MemberId(member_id), name, "client", "host", **wishes)
        self.take(self.group.join(join, token, MemberId(f"m{next(self._ids)}"), MonotonicMs(self.now)))
        return self.answers.get(token)

    def sync(self, token: str, who: Identity, **assignments: bytes) -> Reply | None:
        shares = tuple((MemberId(name), share) for name, share in assignments.items())
        self.take(self.group.sync(Sync(who, shares), token, MonotonicMs(self.now)))
        return self.answers.get(token)

    def at(self, ms: int) -> None:
        """Let time pass, ticking as often as the machine asks for."""
        while (due := self.group.next_tick_ms()) is not None and due <= ms:
            self.now = due
            self.take(self.group.tick(MonotonicMs(due)))
        self.now = ms
        self.take(self.group.tick(MonotonicMs(ms)))

    def joined(self, token: str) -> Joined:
        answer = self.answers[token]
        assert isinstance(answer, Joined), answer
        return answer

    def fail_over(self) -> None:
        self.group = ClassicGroup(self.group.id, self.rules, self.stored, MonotonicMs(self.now))


def me(joined: Joined, instance: str | None = None) -> Identity:
    return Identity(joined.member_id, joined.generation, InstanceId(instance) if instance else None)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def pair(cluster: Cluster) -> Cluster:
    """Members m1 (leads) and m2 in a stable first generation."""
    cluster.join("a")
    cluster.join("b")
    cluster.at(6_000)
    cluster.sync("b syncs", me(cluster.joined("b")))
    cluster.sync("a syncs", me(cluster.joined("a")), m1=b"1", m2=b"2")
    assert cluster.group.state is GroupState.STABLE
    return cluster


def test_the_first_generation_waits_for_newcomers_and_each_prolongs_it(cluster: Cluster) -> None:
    cluster.join("a")
    cluster.at(2_999)
    cluster.join("b")
    cluster.at(5_998)
    assert cluster.answers == {}
    cluster.at(5_999)
    a, b = cluster.joined("a"), cluster.joined("b")
    assert (a.generation, a.leader, b.leader, b.members) == (1, "m1", "m1", ())
    assert [member.member_id for member in a.members] == ["m1", "m2"]


def test_first_generation_waits_for_no_id_that_was_given_out(cluster: Cluster) -> None:
    """Who asked for it may be gone: the newcomers' delay is all that they wait, as in Kafka."""
    cluster.join("given", needs_id=True)
    cluster.join("a")
    cluster.at(2_999)
    assert "a" not in cluster.answers
    cluster.at(3_000)
    assert cluster.joined("a").generation == 1
    cluster.join("late", "m1", needs_id=True)
    assert cluster.group.state is GroupState.PREPARING_REBALANCE


def test_static_member_that_names_anothers_id_must_share_a_protocol(cluster: Cluster) -> None:
    cluster.join("a", instance="i-a")
    cluster.at(3_000)
    answer = cluster.join("b", cluster.joined("a").member_id, "i-b", protocols=(Protocol("sticky", b"t"),))
    assert isinstance(answer, InconsistentGroupProtocol)


def test_the_leader_settles_the_generation_and_all_learn_their_part(pair: Cluster) -> None:
    assert pair.answers["a syncs"] == Synced("consumer", "range", b"1")
    assert pair.answers["b syncs"] == Synced("consumer", "range", b"2")
    assert [(member.id, member.assignment) for member in pair.stored.members] == [("m1", b"1"), ("m2", b"2")]


def test_a_dynamic_member_gets_its_id_first_and_must_use_it_in_time(cluster: Cluster) -> None:
    assert cluster.join("first", needs_id=True) == MemberIdIs(MemberId("m1"))
    cluster.join("second", "m1")
    cluster.at(3_000)
    assert cluster.joined("second").member_id == "m1"
    assert cluster.join("other", needs_id=True) == MemberIdIs(MemberId("m3"))
    cluster.at(13_000)
    assert isinstance(cluster.join("late", "m3"), UnknownMemberId)


def test_a_newcomer_has_all_join_again_and_who_does_not_is_left_out(pair: Cluster) -> None:
    pair.join("c")
    a, b = me(pair.joined("a")), me(pair.joined("b"))
    with pytest.raises(RebalanceInProgress):
        pair.group.heartbeat(a, MonotonicMs(pair.now))
    pair.group.check_commit(b, MonotonicMs(pair.now))  # the old generation's work counts until the new one begins
    pair.join("a again", "m1")
    assert "c" not in pair.answers
    for _ in range(8):
        pair.now += 9_000
        pair.at(pair.now)
    assert [member.member_id for member in pair.joined("a again").members] == ["m1", "m3"]
    with pytest.raises(UnknownMemberId):
        pair.group.check_commit(b, MonotonicMs(pair.now))


def test_member_that_joins_again_must_share_a_protocol(pair: Cluster) -> None:
    assert isinstance(pair.join("a again", "m1", protocols=(Protocol("odd", b""),)), InconsistentGroupProtocol)
    assert (pair.group.state, pair.group.generation) == (GroupState.STABLE, 1)


def test_member_that_is_alone_must_share_a_protocol_with_itself(cluster: Cluster) -> None:
    cluster.join("a", instance="one")
    cluster.at(3_000)
    sticky = (Protocol("sticky", b"t"),)
    assert isinstance(cluster.join("changed", "m1", "one", protocols=sticky), InconsistentGroupProtocol)
    assert isinstance(cluster.join("started", instance="one", protocols=sticky), InconsistentGroupProtocol)
    both = (Protocol("sticky", b"t"), Protocol("range", b"t"))
    cluster.join("both", "m1", "one", protocols=both)
    cluster.join("sticky", "m1", "one", protocols=sticky)
    assert (cluster.joined("both").protocol, cluster.joined("sticky").generation) == ("sticky", 3)


def test_leader_that_keeps_its_place_but_is_absent_is_replaced(cluster: Cluster) -> None:
    cluster.join("a", instance="one")
    cluster.join("b")
    cluster.at(6_000)
    assert cluster.joined("b").leader == cluster.joined("a").member_id
    cluster.sync("b syncs", me(cluster.joined("b")))
    cluster.sync("a syncs", me(cluster.joined("a"), "one"), m1=b"1", m2=b"2")
    cluster.join("a again", "m1", "one", session_timeout_ms=300_000, protocols=(Protocol("range", b"u"),))
    cluster.join("b again", "m2")
    cluster.at(7_000)
    assert cluster.joined("a again").leader == "m1", "who leads and joins goes on leading"
    for name, instance in (("b", None), ("a", "one")):
        cluster.sync(f"{name} syncs again", me(cluster.joined(f"{name} again"), instance), m1=b"1", m2=b"2")
    cluster.join("b changes", "m2", protocols=(Protocol("range", b"v"),))
    cluster.at(67_000)
    changed = cluster.joined("b changes")
    assert (changed.leader, [member.member_id for member in changed.members]) == ("m2", ["m1", "m2"])


def test_an_old_generation_is_refused_at_once(pair: Cluster) -> None:
    old = me(pair.joined("b"))
    pair.join("a again", "m1")
    pair.join("b again", "m2")
    new = me(pair.joined("b again"))
    with pytest.raises(IllegalGeneration, match="generation 2, member m2 in 1"):
        pair.group.check_commit(old, MonotonicMs(pair.now))
    with pytest.raises(RebalanceInProgress):
        pair.group.check_commit(new, MonotonicMs(pair.now))
    assert isinstance(pair.sync("old", old), IllegalGeneration)


def test_a_silent_member_is_lost_after_its_session(pair: Cluster) -> None:
    a = me(pair.joined("a"))
    pair.at(15_999)
    pair.group.heartbeat(a, MonotonicMs(pair.now))
    pair.at(16_000)
    with pytest.raises(RebalanceInProgress):
        pair.group.heartbeat(a, MonotonicMs(pair.now))
    pair.join("a again", "m1")
    assert [member.member_id for member in pair.joined("a again").members] == ["m1"]


def test_who_never_syncs_is_lost_after_the_rebalance_timeout(cluster: Cluster) -> None:
    cluster.join("a")
    cluster.join("b")
    cluster.at(3_000)
    a, b = me(cluster.joined("a")), me(cluster.joined("b"))
    cluster.sync("a syncs", a, m1=b"1", m2=b"2")
    for ms in range(11_000, 63_000, 8_000):
        cluster.at(ms)
        cluster.group.heartbeat(a, MonotonicMs(ms))
        cluster.group.heartbeat(b, MonotonicMs(ms))
    cluster.at(62_999)
    assert cluster.group.state is GroupState.STABLE
    cluster.at(63_000)
    assert [member.id for member in cluster.group.members] == ["m1"]


def test_who_leaves_is_not_waited_for(pair: Cluster) -> None:
    outcome, results = pair.group.leave([Leaver(MemberId("m1")), Leaver(MemberId("m9"))], MonotonicMs(pair.now))
    pair.take(outcome)
    assert [type(result) for result in results] == [type(None), UnknownMemberId]
    pair.join("b again", "m2")
    assert pair.joined("b again").leader == "m2"


def test_id_that_was_given_out_leaves_whatever_instance_is_named(pair: Cluster) -> None:
    """It is of no static member, as in Kafka."""
    pair.join("given", needs_id=True)
    outcome, results = pair.group.leave([Leaver(MemberId("m3"), InstanceId("i"))], MonotonicMs(pair.now))
    pair.take(outcome)
    assert (results, pair.group.state) == ((None,), GroupState.STABLE)
    assert isinstance(pair.join("late", "m3"), UnknownMemberId)


def test_the_last_to_leave_empties_the_group(pair: Cluster) -> None:
    outcome, _ = pair.group.leave([Leaver(MemberId("m1")), Leaver(MemberId("m2"))], MonotonicMs(pair.now))
    pair.take(outcome)
    assert (pair.group.state, pair.stored) == (GroupState.EMPTY, StoredGroup(Generation(2), "consumer"))
    pair.group.check_commit(NOBODY, MonotonicMs(pair.now))


def test_member_that_commits_lives(pair: Cluster) -> None:
    pair.at(15_000)
    pair.group.check_commit(me(pair.joined("b")), MonotonicMs(pair.now))
    pair.at(16_000)
    assert [member.id for member in pair.group.members] == ["m2"]


def test_only_members_commit_while_there_are_some(pair: Cluster) -> None:
    with pytest.raises(UnknownMemberId, match="has members"):
        pair.group.check_commit(NOBODY, MonotonicMs(pair.now))


def test_another_coordinator_goes_on_with_the_generation(pair: Cluster) -> None:
    a = me(pair.joined("a"))
    pair.fail_over()
    pair.group.heartbeat(a, MonotonicMs(pair.now))
    assert pair.sync("a syncs again", a) == Synced("consumer", "range", b"1")


def test_a_member_whose_answer_was_lost_gets_it_again(pair: Cluster) -> None:
    before = pair.joined("b")
    assert pair.join("b again", "m2") == before
    assert pair.group.state is GroupState.STABLE


@pytest.mark.parametrize(
    "protocols",
    [(Protocol("range", b"t"), Protocol("sticky", b"t")), (Protocol("sticky", b"t"), Protocol("range", b"t"))],
)
def test_member_that_supports_other_protocols_now_has_all_join(pair: Cluster, protocols: tuple[Protocol, ...]) -> None:
    """Whoever comes next must share one with what it supports now."""
    assert pair.join("b again", "m2", protocols=protocols) is None
    pair.join("a again", "m1", protocols=protocols)
    assert pair.joined("b again").generation == 2
    pair.sync("b syncs 2", me(pair.joined("b again")))
    pair.sync("a syncs 2", me(pair.joined("a again")), m1=b"1", m2=b"2")
    assert pair.join("b gives up", "m2", protocols=(Protocol("range", b"t"),)) is None
    assert isinstance(pair.join("c", protocols=(Protocol("sticky", b"t"),)), InconsistentGroupProtocol)


def test_a_leader_that_joins_again_has_the_group_rebalanced(pair: Cluster) -> None:
    assert pair.join("a again", "m1") is None
    assert pair.group.state is GroupState.PREPARING_REBALANCE


@pytest.mark.parametrize("named", [{"protocol_type": "connect"}, {"protocol": "sticky"}])
def test_sync_that_names_another_protocol_is_refused(pair: Cluster, named: dict[str, str]) -> None:
    pair.take(pair.group.sync(Sync(me(pair.joined("b")), **named), "odd", MonotonicMs(pair.now)))  # type: ignore[arg-type]
    assert isinstance(pair.answers["odd"], InconsistentGroupProtocol)


class TestStatic:
    @pytest.fixture
    def pair(self, cluster: Cluster) -> Cluster:
        cluster.join("a", instance="left")
        cluster.join("b", instance="right")
        cluster.at(6_000)
        cluster.sync("b syncs", me(cluster.joined("b"), "right"))
        cluster.sync("a syncs", me(cluster.joined("a"), "left"), m1=b"1", m2=b"2")
        return cluster

    def test_one_that_starts_again_goes_on_without_a_rebalance(self, pair: Cluster) -> None:
        old = me(pair.joined("b"), "right")
        pair.join("b again", instance="right")
        joined = pair.joined("b again")
        assert (joined.generation, pair.group.state) == (1, GroupState.STABLE)
        assert pair.sync("b syncs again", me(joined, "right")) == Synced("consumer", "range", b"2")
        with pytest.raises(FencedInstanceId, match="'right'"):
            pair.group.heartbeat(old, MonotonicMs(pair.now))
        pair.fail_over()
        pair.group.heartbeat(me(joined, "right"), MonotonicMs(pair.now))

    def test_a_leader_is_told_that_the_assignment_stands(self, pair: Cluster) -> None:
        pair.join("a again", instance="left")
        joined = pair.joined("a again")
        assert (joined.leader, joined.skip_assignment, len(joined.members)) == (joined.member_id, True, 2)

    def test_an_older_client_is_not_told_that_it_leads(self, pair: Cluster) -> None:
        pair.join("a again", instance="left", can_skip_assignment=False)
        joined = pair.joined("a again")
        assert (joined.leader, joined.member_id != "m1", joined.members) == ("m1", True, ())

    def test_one_that_wants_something_else_has_all_join_again(self, pair: Cluster) -> None:
        assert pair.join("b again", instance="right", protocols=(Protocol("range", b"u"),)) is None
        assert pair.group.state is GroupState.PREPARING_REBALANCE

    def test_one_that_has_forgotten_its_generation_wants_the_same(self, pair: Cluster) -> None:
        """Java's consumers add what they owned, and in which generation, to their subscription."""
        subscription = encode_subscription(["t"])
        knowing = (Protocol("range", b"\x00\x03" + subscription[2:] + b"\x00\x00\x00\x00\x00\x00\x00\x01"),)
        pair.join("b knows", "m2", "right", protocols=knowing)
        pair.join("a too", "m1", "left")
        pair.sync("b syncs 2", me(pair.joined("b knows"), "right"))
        pair.sync("a syncs 2", me(pair.joined("a too"), "left"), m1=b"1", m2=b"2")
        pair.join("b again", instance="right", protocols=(Protocol("range", subscription),))
        assert (pair.joined("b again").generation, pair.group.state) == (2, GroupState.STABLE)
        other = encode_subscription(["t", "u"])
        assert pair.join("b wants more", instance="right", protocols=(Protocol("range", other),)) is None

    def test_only_a_consumers_topics_count_alone(self, cluster: Cluster) -> None:
        subscription = encode_subscription(["t"])
        knowing = b"\x00\x03" + subscription[2:] + b"\x00\x00\x00\x00\x00\x00\x00\x01"
        kind = {"instance": "left", "protocol_type": "connect"}
        cluster.join("a", protocols=(Protocol("range", knowing),), **kind)
        cluster.at(6_000)
        cluster.sync("a syncs", me(cluster.joined("a"), "left"), m1=b"1")
        assert cluster.join("a again", protocols=(Protocol("range", subscription),), **kind) is not None
        assert cluster.group.state is GroupState.COMPLETING_REBALANCE, "its bytes differ"

    def test_it_keeps_its_place_until_its_session_ends(self, pair: Cluster) -> None:
        pair.at(15_999)
        assert len(pair.group.members) == 2
        pair.at(16_000)
        assert len(pair.group.members) == 0

    def test_it_leaves_by_its_name(self, pair: Cluster) -> None:
        outcome, results = pair.group.leave([Leaver(NO_MEMBER, InstanceId("left"))], MonotonicMs(pair.now))
        pair.take(outcome)
        assert results == (None,)
        assert [member.id for member in pair.group.members] == ["m2"]

    def test_the_newer_of_two_with_one_name_fences_the_older_that_waits(self, cluster: Cluster) -> None:
        cluster.join("old", instance="one")
        cluster.join("new", instance="one")
        assert isinstance(cluster.answers["old"], FencedInstanceId)
        cluster.at(6_000)
        assert cluster.joined("new").generation == 1


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"session_timeout_ms": 5_999}, InvalidSessionTimeout),
        ({"session_timeout_ms": 1_800_001}, InvalidSessionTimeout),
        ({"protocols": ()}, InconsistentGroupProtocol),
        ({"protocols": (Protocol("sticky", b""),)}, InconsistentGroupProtocol),
        ({"protocol_type": ""}, InconsistentGroupProtocol),
        ({"protocol_type": "connect"}, InconsistentGroupProtocol),
        ({"member_id": "m9"}, UnknownMemberId),
        ({"member_id": "m1", "instance": "left"}, UnknownMemberId),
    ],
)
def test_a_join_that_does_not_fit_is_refused_and_changes_nothing(
    pair: Cluster, more: dict[str, Any], error: type[Exception]
) -> None:
    assert isinstance(pair.join("c", **more), error)
    assert (pair.group.state, len(pair.group.members)) == (GroupState.STABLE, 2)


@pytest.fixture
def full(pair: Cluster) -> Cluster:
    """Members m1 (leads), m2 and m3, which is static, in a new generation."""
    pair.join("c", instance="i")
    pair.join("a again", "m1")
    pair.join("b again", "m2")
    assert pair.group.state is GroupState.COMPLETING_REBALANCE
    return pair


@pytest.mark.parametrize("needs_id", [True, False])
def test_full_group_refuses_newcomers(full: Cluster, needs_id: bool) -> None:
    assert isinstance(full.join("d", needs_id=needs_id), GroupMaxSizeReached)
    full.sync("a syncs again", me(full.joined("a again")))
    assert isinstance(full.join("d again", needs_id=needs_id), GroupMaxSizeReached)


def test_static_member_that_starts_again_has_its_place_in_a_full_group(full: Cluster) -> None:
    full.sync("a syncs again", me(full.joined("a again")))
    full.join("c started again", instance="i")
    assert full.joined("c started again").generation == 2


def test_id_that_was_given_out_takes_no_place(cluster: Cluster) -> None:
    for name in "abcd":
        assert isinstance(cluster.join(name, needs_id=True), MemberIdIs)


def test_last_to_join_again_finds_no_place_and_is_not_waited_for(pair: Cluster) -> None:
    pair.join("c")
    pair.join("d")
    pair.join("b again", "m2")
    assert isinstance(pair.join("a again", "m1"), GroupMaxSizeReached)
    assert [member.id for member in pair.group.members] == ["m2", "m3", "m4"]
    assert pair.joined("b again").leader == "m2"


def test_id_for_which_there_is_no_place_is_not_waited_for(pair: Cluster) -> None:
    late = pair.join("late", needs_id=True)
    assert isinstance(late, MemberIdIs)
    pair.join("c")
    pair.join("a again", "m1")
    pair.join("b again", "m2")
    assert pair.group.state is GroupState.PREPARING_REBALANCE
    assert isinstance(pair.join("late again", late.member_id), GroupMaxSizeReached)
    assert pair.joined("c").generation == 2


def test_the_protocol_that_most_like_best_is_taken(cluster: Cluster) -> None:
    cluster.join("a", protocols=(Protocol("range", b""), Protocol("sticky", b"")))
    cluster.join("b", protocols=(Protocol("sticky", b""), Protocol("range", b"")))
    cluster.join("c", protocols=(Protocol("own", b""), Protocol("sticky", b""), Protocol("range", b"")))
    cluster.at(9_000)
    assert cluster.joined("a").protocol == "sticky"


def test_first_by_name_of_equally_liked_protocols_is_taken(cluster: Cluster) -> None:
    """Whoever of the members joined first."""
    cluster.join("a", protocols=(Protocol("roundrobin", b""), Protocol("range", b"")))
    cluster.join("b", protocols=(Protocol("range", b""), Protocol("roundrobin", b"")))
    cluster.at(6_000)
    assert cluster.joined("a").protocol == "range"


def test_rebalance_before_the_assignment_leaves_none(pair: Cluster) -> None:
    """The former one is of no generation that anybody is in; while members join it is still told."""
    pair.join("a again", "m1")
    assert [member.assignment for member in pair.group.members] == [b"1", b"2"]
    pair.join("b again", "m2")
    pair.join("c")
    assert [member.assignment for member in pair.group.members] == [b"", b"", b""]


def test_rebalance_renews_session_of_member_waiting_for_sync(cluster: Cluster) -> None:
    """Its session does not pass while its request waits here, however long the leader takes to fall silent."""
    cluster.join("a", session_timeout_ms=30_000)
    cluster.join("b")
    cluster.at(6_000)
    b = cluster.joined("b")
    cluster.sync("b syncs", me(b))
    cluster.at(36_000)  # the leader's session ends, b has waited for it three times as long as its own
    assert isinstance(cluster.answers["b syncs"], RebalanceInProgress)
    assert b.member_id in cluster.group.members
    due = cluster.group.next_tick_ms()
    assert due is not None
    assert due > 36_000
    cluster.join("b again", b.member_id)
    assert cluster.joined("b again").leader == b.member_id


def test_rebalance_without_joiners_waits_for_joins_and_sessions_alone(cluster: Cluster) -> None:
    """Static members keep their places until their sessions end: looking each rebalance timeout brings nothing."""
    for name in "ab":
        cluster.join(name, instance=name, rebalance_timeout_ms=5)
    cluster.at(5)
    a = cluster.joined("a")
    cluster.sync("a syncs", me(a, "a"))
    cluster.sync("b syncs", me(cluster.joined("b"), "b"))
    cluster.take(cluster.group.leave([Leaver(NO_MEMBER, InstanceId("b"))], MonotonicMs(5))[0])
    cluster.at(10)
    assert cluster.group.state is GroupState.PREPARING_REBALANCE
    assert cluster.group.next_tick_ms() == 10_005
    cluster.at(4_000)
    cluster.join("c", rebalance_timeout_ms=5)
    assert cluster.group.next_tick_ms() == 4_005  # the first to come has the others a whole time to come, too
    cluster.at(4_005)
    assert cluster.joined("c").generation == 2
