"""What a member does in the registries when answers are lost, others come between, and nodes cannot be read."""

from __future__ import annotations

import time

import pytest

from kit.registry_side import GROUP, TOPIC, TP, RegistrySide
from kit.topics import drop_topic, put_topic, replace_topic
from raylog.coordination.groups.assignors import Assignor
from raylog.coordination.groups.claims import REFUSED_TOLD_AFTER_MS, REFUSED_TOLD_EVERY_MS, GroupClaims
from raylog.coordination.groups.group import Member
from raylog.coordination.groups.offsets import RegistryOffsetStore
from raylog.coordination.metadata import group_paths, paths
from raylog.coordination.metadata.group_events import (
    Assign,
    Claimed,
    ClaimInDoubt,
    ClaimLost,
    ClaimPartition,
    ClaimRefused,
    Deregister,
    Deregistered,
    DeregisterFailed,
    Effect,
    Event,
    Evict,
    Leave,
    Looked,
    LookFailed,
    Publish,
    Published,
    Quiet,
    Register,
    RegistrationFailed,
    Release,
    Released,
    ReleaseFailed,
    Revoke,
    Started,
    Tick,
    View,
)
from raylog.coordination.metadata.group_events import Registered as IsRegistered
from raylog.coordination.metadata.group_model import CommittedOffset, Registered, Shares
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import NodeEvent
from raylog.protocol.errors import IllegalGeneration, RequestTimedOut
from raylog.protocol.ids import (
    Generation,
    MemberId,
    MonotonicMs,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
)

A, B = MemberId("a"), MemberId("b")
OTHER = TopicPartition(TOPIC, PartitionIndex(1))
CLAIM = 6
"""Which request of a first claim makes it: its nodes are read, ensured, and read again before."""
OFFSETS_OF_EVICTED = 4
"""Which request of an eviction reads the offsets: the owners' topics, partitions and nodes come before."""
OWNER, ASSIGNMENT = group_paths.owner(GROUP, TP), group_paths.assignment(GROUP)


class Side(RegistrySide):
    """Of a member that wants TOPIC, or what matches ``pattern``."""

    def __init__(self, tree: MemoryTree, name: MemberId, pattern: str = "", host: str = "") -> None:
        topics = frozenset(() if pattern else (TOPIC,))
        super().__init__(tree, name, Registered(topics, pattern or None, host, 9 if host else -1))

    def lose_answer(self, number: int) -> None:
        """The answer to request ``number`` from now is lost."""
        if number == 1:
            self.store.lose_next_answer()
        else:
            self.after_answers(number - 1, self.store.lose_next_answer)


@pytest.fixture
def tree() -> MemoryTree:
    tree = MemoryTree()
    with MemoryStore(tree) as store:
        put_topic(store, TOPIC, 2)
    return tree


@pytest.fixture
def a(tree: MemoryTree) -> Side:
    return Side(tree, A).registered()


@pytest.fixture
def b(tree: MemoryTree) -> Side:
    return Side(tree, B).registered()


# --- answers that are lost ---


def test_a_registration_that_was_not_heard_of_is_known_again(tree: MemoryTree) -> None:
    side = Side(tree, A)
    side.registered()
    assert side.do(Deregister()) == Deregistered()
    side.store.lose_next_answer()
    assert side.do(Register()) == RegistrationFailed()
    side.registered()
    assert side.registry.session_id == side.store.session.id


def test_a_registration_of_another_session_under_our_id_is_not_ours(tree: MemoryTree, a: Side) -> None:
    assert Side(tree, A).do(Register()) == RegistrationFailed()


def test_a_claim_that_was_not_heard_of_is_known_again(a: Side, b: Side) -> None:
    a.lose_answer(CLAIM)
    assert a.do(ClaimPartition(TP)) == ClaimInDoubt(TP)
    assert b.do(ClaimPartition(TP)) == ClaimRefused(TP), "it was made"
    assert a.do(ClaimPartition(TP)) == Claimed(TP)
    a.commit(5)
    assert a.committed() == 5


def test_a_claim_in_doubt_is_given_up_without_having_been_known(a: Side, b: Side) -> None:
    a.lose_answer(CLAIM)
    assert a.do(ClaimPartition(TP)) == ClaimInDoubt(TP)
    assert a.do(Release(TP, None)) == Released(TP)
    assert b.do(ClaimPartition(TP)) == Claimed(TP)
    assert a.do(Release(TP, None)) == ClaimLost(TP)


def test_a_commit_that_was_not_heard_of_does_not_stop_the_next(a: Side) -> None:
    a.do(ClaimPartition(TP))
    a.store.lose_next_answer()
    with pytest.raises(RequestTimedOut, match="may have been written or not"):
        a.commit(5)
    a.commit(6)
    assert a.committed() == 6


def test_a_release_that_was_not_heard_of_is_over(a: Side, b: Side) -> None:
    a.do(ClaimPartition(TP))
    a.store.lose_next_answer()
    assert a.do(Release(TP, CommittedOffset(Offset(7)))) == ReleaseFailed(TP)
    assert b.do(ClaimPartition(TP)) == Claimed(TP)
    assert a.do(Release(TP, CommittedOffset(Offset(7)))) == ClaimLost(TP)
    claim = b.claims.get(TP)
    assert claim is not None
    assert claim.committed is not None
    assert claim.committed.offset == 7


def test_a_release_after_a_commit_in_doubt_goes_through(a: Side) -> None:
    a.do(ClaimPartition(TP))
    a.store.lose_next_answer()
    with pytest.raises(RequestTimedOut):
        a.commit(5)
    assert a.do(Release(TP, CommittedOffset(Offset(6)))) == Released(TP)
    assert a.committed() == 6
    assert a.store.exists(OWNER) is None


def test_release_that_failed_is_tried_again_though_its_topic_is_gone(a: Side, b: Side) -> None:
    """Else the owner's node would stay as long as the session."""
    member, now = Member(A, Assignor.STICKY, lambda: 0.0), MonotonicMs(0)

    def does(event: Event | None) -> list[Effect]:
        assert event is not None
        return member.on(event, now)

    view = View(Shares(Generation(1), {A: (TP,)}), 0, {A: frozenset({TOPIC})}, {TOPIC: 1})
    assert [does(event) for event in (Started(), IsRegistered(), Looked(view))][-1] == [ClaimPartition(TP)]
    assert does(a.do(ClaimPartition(TP))) == [Assign(TP)]
    assert a.registry.of_deleted_topics() == []
    assert does(Leave()) == [Revoke(TP)]
    assert does(Quiet(TP, None)) == [Release(TP, None)]
    a.store.suspend()
    assert does(a.do(Release(TP, None))) == []
    replace_topic(b.store, TOPIC, 2)
    a.store.resume()
    a.registry.watches_lost()
    assert a.registry.of_deleted_topics() == [TP]
    does(ClaimLost(TP))
    due = member.next_tick_ms()
    assert due is not None
    assert member.on(Tick(), due) == [Release(TP, None)]
    does(a.do(Release(TP, None)))
    assert b.do(ClaimPartition(TP)) == Claimed(TP)
    assert member.next_tick_ms() is None


def test_signing_off_that_was_not_heard_of_is_over(a: Side) -> None:
    a.lose_answer(2)
    assert a.do(Deregister()) == DeregisterFailed()
    assert a.do(Deregister()) == Deregistered()
    assert not a.store.children(group_paths.members(GROUP))


def test_an_offset_that_a_member_never_claimed_is_claimed(a: Side) -> None:
    RegistryOffsetStore(a.store).write(GROUP, {TP: CommittedOffset(Offset(5))}, ())
    assert a.do(ClaimPartition(TP)) == Claimed(TP)
    assert a.committed() == 5


# --- others come between ---


def test_who_is_not_registered_any_more_claims_and_publishes_nothing(a: Side, b: Side) -> None:
    assert b.do(ClaimPartition(TP)) == Claimed(TP)
    b.do(Evict(A))
    assert a.do(ClaimPartition(OTHER)) == ClaimRefused(OTHER)
    assert a.do(Publish(Shares(Generation(0), {}), -1)) == LookFailed()
    assert A not in a.look().members
    a.registered()
    assert a.do(ClaimPartition(OTHER)) == Claimed(OTHER)


def test_a_stale_commit_is_refused_whether_or_not_another_has_claimed(a: Side, b: Side) -> None:
    a.do(ClaimPartition(TP))
    a.commit(5)
    b.do(Evict(A))
    for claims in (False, True):
        if claims:
            assert b.do(ClaimPartition(TP)) == Claimed(TP)
        with pytest.raises(IllegalGeneration, match="t-0: member a of group g does not own that"):
            a.commit(7)
    assert a.do(Release(TP, CommittedOffset(Offset(8)))) == ClaimLost(TP)
    assert (b.committed(), b.store.exists(OWNER) is not None) == (5, True)


def test_who_commits_while_he_is_evicted_lives(a: Side, b: Side) -> None:
    """What was found of him is old by then: neither he nor his partition is touched."""
    a.do(ClaimPartition(TP))
    b.after_answers(OFFSETS_OF_EVICTED, lambda: a.commit(1))
    b.do(Evict(A))
    assert a.committed() == 1, "it came between"
    assert A in b.look().members
    assert b.do(ClaimPartition(TP)) == ClaimRefused(TP)


def test_who_owns_more_than_a_multi_takes_is_not_evicted(a: Side, b: Side) -> None:
    """ZooKeeper would drop the connection of whoever tried."""
    for index in range(1_500):
        tp = TopicPartition(TopicName("t" * 249), PartitionIndex(index))
        b.store.create(group_paths.offset(GROUP, tp), b"0", parents=True)
        b.store.create(group_paths.owner(GROUP, tp), group_paths.encode_owner(B), parents=True)
    a.do(Evict(B))
    assert B in a.look().members


def test_an_evicted_member_that_lives_leaves_nothing_behind_when_it_registers_anew(a: Side, b: Side) -> None:
    """It claimed after the elected one had looked for what it owns."""
    b.after_answers(1, lambda: a.do(ClaimPartition(TP)))
    b.do(Evict(A))
    assert b.do(ClaimPartition(TP)) == ClaimRefused(TP)
    a.registered()
    assert b.do(ClaimPartition(TP)) == Claimed(TP)


def test_who_was_taken_for_dead_and_lives_is_not_so_again(tree: MemoryTree, b: Side) -> None:
    """Its connections say that it is dead, whatever they run into: they are not asked any more."""
    listens = Side(tree, A, host="192.0.2.1").registered()
    assert b.look()
    assert [other.host for other in b.registry.others.values()] == ["192.0.2.1"]
    b.registry.seems_dead(A)
    b.do(Evict(A))
    listens.registered()
    assert b.look()
    assert [other.host for other in b.registry.others.values()] == [""]
    assert listens.do(Register()) == IsRegistered()
    assert b.look().members.keys() == {A, B}


def test_of_two_who_publish_one_is_first(a: Side, b: Side) -> None:
    shares = Shares(Generation(0), {A: (TP,)})
    assert a.do(Publish(shares, -1)) == Published()
    assert b.do(Publish(Shares(Generation(0), {B: (TP,)}), -1)) == Published()
    assert (a.look().shares, a.look().version, b.look().shares) == (shares, 0, shares)


# --- looking ---


def test_the_elected_one_sees_what_others_want(tree: MemoryTree, a: Side) -> None:
    put_topic(a.store, TOPIC, 2)
    put_topic(a.store, "u1", 1)
    Side(tree, B, pattern="u.").registered()
    assert a.look() == View(None, -1, {A: frozenset({TOPIC}), B: frozenset({TopicName("u1")})}, {TOPIC: 2, "u1": 1})
    assert a.registry.elected == A


@pytest.mark.timeout(30)
def test_stored_hostile_pattern_does_not_hold_up_the_elected(tree: MemoryTree, a: Side) -> None:
    put_topic(a.store, TOPIC, 2)
    put_topic(a.store, "a" * 60 + "-", 2)
    a.look()
    Side(tree, B, pattern="(a+)+$").registered()
    Side(tree, MemberId("c"), pattern=r"(a)\1").registered()
    begun = time.thread_time()
    assert a.look().members == {A: {TOPIC}, B: frozenset(), "c": frozenset()}
    assert time.thread_time() - begun < 0.5


def test_members_know_those_whose_death_concerns_them(tree: MemoryTree, a: Side, b: Side) -> None:
    """All those right before them that seem dead, and the next, who does not; the elected one all."""
    c, d = (Side(tree, MemberId(name)).registered() for name in "cd")
    for side in (a, b, c, d):
        side.look()
    assert list(a.registry.others) == [B, "c", "d"]
    assert list(d.registry.others) == ["c"]
    for member in (MemberId("c"), MemberId("c"), A):
        d.registry.seems_dead(member)
    d.look()
    assert list(d.registry.others) == ["c", B]
    d.registry.seems_dead(B)
    d.look()
    assert list(d.registry.others) == ["c", B, A]
    for dead in (A, B, MemberId("c")):
        d.do(Evict(dead))
    assert d.look().members.keys() == {"d"}
    assert d.registry.elected == "d"
    assert list(d.registry.others) == []


def test_member_reads_names_when_its_neighbour_is_gone(tree: MemoryTree, a: Side, b: Side) -> None:
    """Whoever comes between the two of them is found then."""
    d = Side(tree, MemberId("d")).registered()
    assert d.look().members.keys() == {A, B, "d"}
    c = Side(tree, MemberId("c")).registered()
    assert d.look().members.keys() == {B, "d"}, "of its neighbour it knows already"
    b.do(Deregister())
    assert d.look().members.keys() == {A, "c", "d"}
    assert list(d.registry.others) == ["c"]
    a.do(Deregister())
    assert d.look().members.keys() == {"c", "d"}
    assert c.look().members == {"c": frozenset({TOPIC}), "d": frozenset({TOPIC})}
    assert c.registry.elected == "c"
    d.do(Deregister())
    assert d.look().members.keys() == {"c"}, "it sees that it is not registered itself"


def test_publishing_writes_shares_that_changed(tree: MemoryTree, a: Side, b: Side) -> None:
    c = Side(tree, MemberId("c")).registered()
    for side in (a, b, c):
        side.look()
    a.do(Publish(Shares(Generation(0), {A: (TP,), B: (OTHER,), MemberId("c"): ()}), -1))
    for side in (a, b, c):
        side.look()
    a.do(Publish(Shares(Generation(1), {A: (), B: (OTHER,), MemberId("c"): (TP,)}), 0))
    assert b.look().shares == Shares(Generation(0), {B: (OTHER,)}), "nothing new of it was written"
    assert c.look().shares == Shares(Generation(1), {MemberId("c"): (TP,)})
    c.do(Deregister())
    a.look()
    a.do(Publish(Shares(Generation(2), {A: (TP,), B: (OTHER,)}), 1))
    assert a.store.children(ASSIGNMENT) == [A, B]


def test_member_without_readable_share_reads_the_whole_assignment(a: Side, b: Side) -> None:
    shares = Shares(Generation(0), {A: (TP,), B: (OTHER,)})
    b.look()
    a.look()
    a.do(Publish(shares, -1))
    assert b.look().shares == Shares(Generation(0), {B: (OTHER,)})
    a.store.set(group_paths.share(GROUP, B), b"no JSON")
    assert b.look().shares == shares
    a.store.delete(group_paths.share(GROUP, B))
    assert b.look().shares == shares
    a.look()
    a.do(Publish(Shares(Generation(1), {A: (TP,), B: ()}), 0))
    assert b.look().shares == Shares(Generation(1), {B: ()}), "it is mended with the next change"


def test_assignment_too_large_to_be_written_twice_has_no_shares(a: Side, b: Side) -> None:
    """ZooKeeper takes 1 MB at once: the members read the whole then."""
    many = tuple(TopicPartition(TOPIC, PartitionIndex(index)) for index in range(100_000))
    a.do(Publish(Shares(Generation(0), {A: (TP,), B: (OTHER,)}), -1))
    for side in (a, b, b):
        side.look()
    large = Shares(Generation(1), {A: many[:50_000], B: many[50_000:]})
    assert a.do(Publish(large, 0)) == Published()
    assert a.store.children(ASSIGNMENT) == []
    assert b.look().shares == large
    assert a.do(Publish(Shares(Generation(2), {A: many, B: many}), 1)) == LookFailed()
    assert b.look().shares == large


def test_topics_are_read_when_they_changed(a: Side) -> None:
    drop_topic(a.store, TOPIC)
    assert a.look().partitions == {}
    put_topic(a.store, TOPIC, 2)
    while not a.events.empty():
        event = a.events.get()
        assert isinstance(event, NodeEvent)
        a.registry.noticed(event)
    assert a.look().partitions == {TOPIC: 2}
    a.store.suspend()
    put_topic(Side(a.store._tree, B).store, TOPIC, 3)
    a.store.resume()
    a.registry.watches_lost()
    assert a.look().partitions == {TOPIC: 3}


def test_with_its_session_a_member_loses_its_claims_and_watches(tree: MemoryTree, a: Side) -> None:
    put_topic(a.store, TOPIC, 2)
    assert a.look().partitions == {TOPIC: 2}
    assert a.do(ClaimPartition(TP)) == Claimed(TP)
    tree.expire(a.store.session.id)
    put_topic(Side(tree, B).store, TOPIC, 3)
    a.registry.session_lost()
    assert (a.claims.get(TP), a.registry.session_id) == (None, 0)
    a.registered()
    assert a.look().partitions == {TOPIC: 3}


def test_what_cannot_be_read_costs_no_more_than_what_it_says(a: Side) -> None:
    put_topic(a.store, TOPIC, 2)
    for name, data in (
        ("!", b"no JSON"),
        ("x", b"no JSON"),
        ("y", b'{"version": 1, "subscription": {"(": 1}, "pattern": "white_list"}'),
    ):
        a.store.create(f"{group_paths.members(GROUP)}/{name}", data, ephemeral=True)
    a.do(Publish(Shares(Generation(0), {}), -1))
    a.store.set(ASSIGNMENT, b"no JSON")
    view = a.look()
    assert view.members == {A: frozenset({TOPIC}), "y": frozenset()}, "who is unreadable is none"
    assert view.shares == Shares(Generation(1), {}), "the generations only rise"
    a.store.set(paths.topic(TOPIC), b"no JSON")
    a.registry.watches_lost()
    assert a.look().partitions == {}


def test_an_offset_that_cannot_be_read_is_begun_once_it_was_reset(a: Side) -> None:
    a.do(ClaimPartition(TP))
    a.do(Release(TP, None))
    a.store.set(group_paths.offset(GROUP, TP), b"far")
    assert a.do(ClaimPartition(TP)) == ClaimInDoubt(TP)
    assert a.do(ClaimPartition(TP)) == ClaimInDoubt(TP)
    a.store.set(group_paths.offset(GROUP, TP), b"12")
    assert a.do(ClaimPartition(TP)) == Claimed(TP)
    claim = a.claims.get(TP)
    assert claim is not None
    assert claim.committed == CommittedOffset(Offset(12))


def test_claim_in_vain_is_told_after_a_while_and_now_and_then(a: Side, caplog: pytest.LogCaptureFixture) -> None:
    """Of an offset that cannot be read, too."""
    now = [0]
    claims = GroupClaims(a.store, GROUP, A, lambda: MonotonicMs(now[0]))
    a.do(ClaimPartition(TP))
    a.do(Release(TP, None))
    a.store.set(group_paths.offset(GROUP, TP), b"far")
    told: list[tuple[int, str]] = []
    for now[0] in range(0, REFUSED_TOLD_EVERY_MS + REFUSED_TOLD_AFTER_MS + 1, 1_000):
        assert claims.claim(TP) == ClaimInDoubt(TP)
        told += [(now[0], record.getMessage()) for record in caplog.records if "in vain" in record.getMessage()]
        caplog.clear()
    assert [at for at, _ in told] == [REFUSED_TOLD_AFTER_MS, REFUSED_TOLD_AFTER_MS + REFUSED_TOLD_EVERY_MS]
    assert "tried to claim t-0 for 5 s" in told[0][1]
    now[0] += 10 * REFUSED_TOLD_EVERY_MS  # it was not wanted meanwhile
    claims.claim(TP)
    assert not [record for record in caplog.records if "in vain" in record.getMessage()]


def test_an_offset_that_cannot_be_read_keeps_nobody_in_the_group(a: Side) -> None:
    a.do(ClaimPartition(TP))
    a.do(Release(TP, None))
    a.store.set(group_paths.offset(GROUP, TP), b"far")
    assert a.do(ClaimPartition(TP)) == ClaimInDoubt(TP)
    assert a.do(Release(TP, None)) == ClaimLost(TP)
    assert a.store.exists(OWNER) is None
    assert a.do(ClaimPartition(TP)) == ClaimInDoubt(TP)
    assert a.do(Deregister()) == Deregistered()
    assert a.store.exists(OWNER) is None
