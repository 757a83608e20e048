"""A partition's leader: what is committed, who joins and leaves the ISR, when acks=all may be answered."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raylog.broker.replication.leader import InSync, Leadership
from raylog.protocol.errors import (
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    StaleBrokerEpoch,
)
from raylog.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
)

TP = TopicPartition(TopicName("t"), PartitionIndex(0))
LAG_MS = 1_000
EPOCH = 5
LIVE = {BrokerId(broker): BrokerEpoch(7) for broker in (1, 2, 3)}


def state(*isr: int, version: int = 0, replicas: tuple[int, ...] = (1, 2, 3), elr: tuple[int, ...] = ()) -> InSync:
    members = tuple(map(BrokerId, isr))
    incarnations = {broker: LIVE[broker] for broker in members}
    return InSync(
        LeaderEpoch(EPOCH), version, tuple(map(BrokerId, replicas)), members, incarnations, tuple(map(BrokerId, elr))
    )


def leader(
    *isr: int, end: int = 10, hw: int = 0, start: int = 0, min_isr: int = 1, elr: tuple[int, ...] = ()
) -> Leadership:
    return Leadership(
        TP,
        BrokerId(1),
        state(*isr, elr=elr),
        end=Offset(end),
        log_start=Offset(0),
        start_offset=Offset(start),
        high_watermark=Offset(hw),
        now_ms=MonotonicMs(0),
        min_isr=min_isr,
        lag_ms=LAG_MS,
    )


def fetch(leadership: Leadership, broker: int, offset: int, now_ms: int = 0, epoch: int = 7) -> tuple[bool, bool]:
    return leadership.fetched(BrokerId(broker), BrokerEpoch(epoch), Offset(offset), Offset(0), MonotonicMs(now_ms))


def propose(leadership: Leadership, now_ms: int = 0, live: Mapping[BrokerId, BrokerEpoch] = LIVE) -> list[int] | None:
    proposal = leadership.proposal(MonotonicMs(now_ms), live)
    return None if proposal is None else [member for member, _ in proposal.isr]


def update(leadership: Leadership, new: InSync, now_ms: int = 0) -> bool:
    return leadership.update(new, MonotonicMs(now_ms))


# --- whom consumers may read from


def test_consumers_may_read_from_followers_that_have_the_offset() -> None:
    leadership = leader(1, 2)
    assert leadership.readable_replicas(Offset(0)) == [], "nothing is known of its log"
    leadership.fetched(BrokerId(2), BrokerEpoch(7), Offset(8), Offset(5), MonotonicMs(0))
    leadership.fetched(BrokerId(3), BrokerEpoch(7), Offset(10), Offset(0), MonotonicMs(0))
    held = [offset for offset in range(11) if leadership.readable_replicas(Offset(offset))]
    assert held == [5, 6, 7, 8], "and the third one is not in sync"
    assert leadership.readable_replicas(Offset(6)) == [(2, 8)]
    leadership.fetched(BrokerId(2), BrokerEpoch(8), Offset(0), Offset(0), MonotonicMs(0))
    assert leadership.readable_replicas(Offset(6)) == [], "its next life may have less"


# --- the high watermark --------------------------------------------------------------------------------------


def test_nothing_is_committed_before_every_member_has_been_heard_of() -> None:
    leadership = leader(1, 2, 3)
    assert fetch(leadership, 2, 10) == (False, False)
    assert leadership.high_watermark == 0
    assert fetch(leadership, 3, 8) == (True, False)
    assert leadership.high_watermark == 8
    assert not leadership.appended(Offset(20))
    assert fetch(leadership, 3, 20) == (True, False)
    assert leadership.high_watermark == 10


def test_a_sole_member_commits_what_it_appends() -> None:
    leadership = leader(1)
    assert leadership.high_watermark == 10
    assert leadership.appended(Offset(12))
    assert leadership.high_watermark == 12


def test_our_own_end_counts_as_far_as_it_is_durable() -> None:
    leadership = leader(1, 2)
    fetch(leadership, 2, 15)
    assert leadership.high_watermark == 10
    assert leadership.appended(Offset(15))
    assert leadership.high_watermark == 15


def test_a_fetch_that_comes_late_takes_nothing_back() -> None:
    leadership = leader(1, 2)
    fetch(leadership, 2, 8)
    fetch(leadership, 2, 5)
    assert leadership.high_watermark == 8
    assert leadership.followers[BrokerId(2)].end == 8


def test_a_proposed_member_counts_before_it_is_written() -> None:
    leadership = leader(1, 2, end=10)
    fetch(leadership, 2, 10)
    assert fetch(leadership, 3, 10) == (False, True)
    assert propose(leadership) == [1, 2, 3]
    leadership.appended(Offset(20))
    assert fetch(leadership, 2, 20) == (False, False)
    assert leadership.high_watermark == 10
    assert fetch(leadership, 3, 20) == (True, False)


def test_a_leaving_member_counts_until_that_is_written() -> None:
    leadership = leader(1, 2, end=10)
    assert propose(leadership, LAG_MS + 1) == [1]
    assert leadership.high_watermark == 0
    assert update(leadership, state(1, version=1))
    assert leadership.high_watermark == 10


def test_who_was_proposed_counts_on_after_a_refusal_until_a_newer_state() -> None:
    """The refusal may be of a copy: another one may be written later."""
    leadership = leader(1, 2, end=10)
    fetch(leadership, 2, 10)
    fetch(leadership, 3, 10)
    assert propose(leadership) == [1, 2, 3]
    leadership.refused(0)
    assert not update(leadership, state(1, 2, version=0))
    leadership.appended(Offset(20))
    fetch(leadership, 2, 20)
    assert leadership.high_watermark == 10
    without_3 = {broker: epoch for broker, epoch in LIVE.items() if broker != 3}
    assert propose(leadership, live=without_3) == [1, 2], "the ISR as it is, to void the proposal before"
    assert update(leadership, state(1, 2, version=1))
    assert leadership.high_watermark == 20


@pytest.mark.parametrize("elr", [(), (2,)])
def test_the_high_watermark_stands_still_below_min_isr_and_with_eligible_replicas(elr: tuple[int, ...]) -> None:
    leadership = leader(1, end=10, min_isr=1 if elr else 2, elr=elr)
    assert not leadership.appended(Offset(20))
    fetch(leadership, 2, 20)
    assert leadership.high_watermark == 0
    assert propose(leadership) == [1, 2]
    assert update(leadership, state(1, 2, version=1))
    assert leadership.high_watermark == 20


def test_min_isr_above_the_replicas_freezes_nothing_and_refuses_all() -> None:
    leadership = leader(1, 2, 3, min_isr=4)
    fetch(leadership, 2, 10)
    fetch(leadership, 3, 10)
    assert leadership.high_watermark == 10
    with pytest.raises(NotEnoughReplicas):
        leadership.check_enough()
    leadership.configure(3)
    leadership.check_enough()


# --- fencing -------------------------------------------------------------------------------------------------


def test_an_older_incarnation_does_not_count() -> None:
    leadership = leader(1, 2)
    with pytest.raises(StaleBrokerEpoch):
        fetch(leadership, 2, 10, epoch=6)
    assert leadership.high_watermark == 0
    fetch(leadership, 2, 4, epoch=8)
    with pytest.raises(StaleBrokerEpoch):
        fetch(leadership, 2, 10, epoch=7)
    assert leadership.high_watermark == 4


def test_a_new_incarnation_begins_with_nothing() -> None:
    leadership = leader(1, 2)
    fetch(leadership, 2, 8)
    fetch(leadership, 2, 3, epoch=8)
    assert leadership.followers[BrokerId(2)].end == 3
    assert leadership.high_watermark == 8


def test_only_replicas_fetch() -> None:
    with pytest.raises(NotLeaderOrFollower):
        leader(1, 2).fetched(BrokerId(9), BrokerEpoch(1), Offset(0), Offset(0), MonotonicMs(0))


def test_states_that_are_old_or_of_another_epoch_change_nothing() -> None:
    leadership = leader(1, 2)
    update(leadership, state(1, version=3))
    update(leadership, state(1, 2, version=2))
    update(leadership, state(1, 2, 3, version=9)._replace(leader_epoch=LeaderEpoch(EPOCH + 1)))
    assert leadership.isr == (1,)
    assert leadership.version == 3


# --- the ISR -------------------------------------------------------------------------------------------------


def test_joining_takes_the_high_watermark_and_the_start_of_the_epoch() -> None:
    leadership = leader(1, 2, end=10, hw=4, start=8)
    assert fetch(leadership, 3, 3) == (False, False)
    assert fetch(leadership, 3, 7) == (False, False)
    assert propose(leadership) is None
    assert fetch(leadership, 3, 8) == (False, True)
    assert leadership.wants_proposal
    assert propose(leadership) == [1, 2, 3]
    assert not leadership.wants_proposal


def test_only_the_registered_incarnation_joins() -> None:
    leadership = leader(1, 2)
    fetch(leadership, 2, 10)
    fetch(leadership, 3, 10, epoch=6)
    assert propose(leadership) is None
    assert propose(leadership, live={BrokerId(1): BrokerEpoch(7)}) is None
    fetch(leadership, 3, 10, epoch=7)
    assert propose(leadership) == [1, 2, 3]


def test_one_proposal_at_a_time() -> None:
    leadership = leader(1, 2)
    fetch(leadership, 2, 10)
    fetch(leadership, 3, 10)
    assert propose(leadership) == [1, 2, 3]
    assert propose(leadership) is None
    leadership.refused(99)
    assert propose(leadership) is None
    leadership.refused(0)
    assert propose(leadership) == [1, 2, 3]
    update(leadership, state(1, 2, 3, version=1))
    assert propose(leadership) is None


def test_a_refusal_is_not_followed_by_one_proposal_per_fetch() -> None:
    leadership = leader(1, 2)
    fetch(leadership, 2, 10)
    assert fetch(leadership, 3, 10) == (False, True)
    propose(leadership)
    leadership.refused(0)
    assert fetch(leadership, 3, 10) == (False, False)
    assert propose(leadership) == [1, 2, 3], "at the next look at all partitions"


def test_a_member_leaves_after_the_lag_and_not_before() -> None:
    leadership = leader(1, 2, 3)
    fetch(leadership, 2, 10, now_ms=500)
    assert propose(leadership, LAG_MS) is None
    assert propose(leadership, LAG_MS + 1) == [1, 2]


def test_who_keeps_up_with_a_busy_leader_stays_without_ever_being_at_the_end() -> None:
    """Kafka's rule: at its next fetch it is where the leader was at its last one."""
    leadership = leader(1, 2, end=10)
    last_end = 9
    for now_ms in range(0, 10 * LAG_MS, LAG_MS // 4):
        fetch(leadership, 2, last_end, now_ms)
        last_end = int(leadership.end)
        leadership.appended(Offset(leadership.end + 5))
        assert propose(leadership, now_ms) is None


def test_who_fetches_and_falls_further_behind_leaves() -> None:
    leadership = leader(1, 2, end=10)
    left = None
    for now_ms in range(0, 3 * LAG_MS, LAG_MS // 4):
        fetch(leadership, 2, 1 + now_ms // (LAG_MS // 4), now_ms)
        leadership.appended(Offset(leadership.end + 50))
        left = left or (propose(leadership, now_ms) and now_ms)
    assert left == LAG_MS + LAG_MS // 4


def test_idle_members_stay_without_a_fetch_and_have_the_whole_lag_after_an_append() -> None:
    leadership = leader(1, 2, end=10)
    fetch(leadership, 2, 10)
    idle = 100 * LAG_MS
    assert propose(leadership, idle) is None
    leadership.appended(Offset(11))
    assert propose(leadership, idle + LAG_MS) is None
    assert propose(leadership, idle + 2 * LAG_MS) is None
    assert propose(leadership, idle + 2 * LAG_MS + 1) == [1]


def test_a_member_in_a_new_life_is_named_by_it_only_when_it_has_everything() -> None:
    leadership = leader(1, 2, end=10, hw=10)
    fetch(leadership, 2, 4, epoch=8)
    fetch(leadership, 3, 10)
    proposal = leadership.proposal(MonotonicMs(0), {**LIVE, BrokerId(2): BrokerEpoch(8)})
    assert proposal is not None
    assert dict(proposal.isr)[BrokerId(2)] == 7
    leadership.refused(0)
    fetch(leadership, 2, 10, epoch=8)
    proposal = leadership.proposal(MonotonicMs(0), {**LIVE, BrokerId(2): BrokerEpoch(8)})
    assert proposal is not None
    assert dict(proposal.isr)[BrokerId(2)] == 8


def test_a_leader_without_followers_asks_for_nothing() -> None:
    leadership = Leadership(
        TP, BrokerId(1), state(1, replicas=(1,)), end=Offset(3), log_start=Offset(0), start_offset=Offset(3),
        high_watermark=Offset(3), now_ms=MonotonicMs(0), min_isr=1, lag_ms=LAG_MS,
    )  # fmt: skip
    assert leadership.is_alone
    assert propose(leadership, 10 * LAG_MS) is None


# --- acks=all ------------------------------------------------------------------------------------------------


def test_acks_all_is_refused_below_min_isr_and_told_when_it_falls_below_later() -> None:
    leadership = leader(1, 2, end=10, min_isr=2)
    leadership.check_enough()
    assert not leadership.is_committed(leadership.high_watermark, Offset(10), LeaderEpoch(EPOCH))
    update(leadership, state(1, version=1))
    with pytest.raises(NotEnoughReplicas):
        leadership.check_enough()
    with pytest.raises(NotEnoughReplicasAfterAppend):
        leadership.is_committed(leadership.high_watermark, Offset(10), LeaderEpoch(EPOCH))


def test_what_was_committed_in_time_is_acknowledged() -> None:
    leadership = leader(1, 2, end=10, min_isr=2)
    fetch(leadership, 2, 10)
    update(leadership, state(1, version=1))
    assert leadership.is_committed(leadership.high_watermark, Offset(10), LeaderEpoch(EPOCH))


def test_an_append_of_another_leader_epoch_is_never_acknowledged() -> None:
    leadership = leader(1, end=10)
    with pytest.raises(NotLeaderOrFollower):
        leadership.is_committed(Offset(10), Offset(5), LeaderEpoch(EPOCH - 1))


# --- all of it, at random ------------------------------------------------------------------------------------


class Leading(RuleBasedStateMachine):
    """A controller that writes any proposal it ever got at the version it has; followers that fetch what there is."""

    def __init__(self) -> None:
        super().__init__()
        self.min_isr = 2
        self.leadership = leader(1, 2, 3, end=0, min_isr=self.min_isr)
        self.written = state(1, 2, 3)
        self.sent: list[tuple[int, tuple[int, ...]]] = []
        self.ends = {2: 0, 3: 0}
        self.now_ms = 0
        self.last_hw = 0

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        self.leadership.appended(Offset(self.leadership.end + count))

    @rule(broker=st.sampled_from([2, 3]), count=st.integers(0, 8))
    def follow(self, broker: int, count: int) -> None:
        self.ends[broker] = min(self.ends[broker] + count, int(self.leadership.end))
        fetch(self.leadership, broker, self.ends[broker], self.now_ms)

    @rule(ms=st.integers(1, LAG_MS))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def propose(self) -> None:
        proposal = self.leadership.proposal(MonotonicMs(self.now_ms), LIVE)
        if proposal is not None:
            self.sent.append((proposal.version, tuple(member for member, _ in proposal.isr)))

    @rule()
    def lose_answer(self) -> None:
        self.leadership.refused(self.leadership.version)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """A proposal arrives at the controller, perhaps for a second time; the leader hears of it later."""
        version, isr = data.draw(st.sampled_from(self.sent))
        if version == self.written.version:
            self.written = state(*isr, version=version + 1)

    @rule()
    def tell(self) -> None:
        update(self.leadership, self.written, self.now_ms)

    @invariant()
    def only_grows(self) -> None:
        assert self.leadership.high_watermark >= self.last_hw
        self.last_hw = int(self.leadership.high_watermark)

    @invariant()
    def whoever_may_be_elected_has_all_that_is_committed(self) -> None:
        for member in self.written.isr:
            assert member == 1 or self.ends[member] >= self.leadership.high_watermark


TestLeading = Leading.TestCase
TestLeading.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.permutations([(2, 4), (3, 7), (2, 9), (3, 9)]))
def test_fetches_in_any_order_commit_the_same(fetches: list[tuple[int, int]]) -> None:
    leadership = leader(1, 2, 3)
    for broker, offset in fetches:
        fetch(leadership, broker, offset)
    assert leadership.high_watermark == 9


def test_description_has_the_state_and_what_was_asked_for() -> None:
    leadership = leader(1, 2, end=10, hw=4)
    assert leadership.describe()["proposed"] is None
    fetch(leadership, 2, 10)
    fetch(leadership, 3, 10)
    assert propose(leadership) == [1, 2, 3]
    told = leadership.describe()
    assert told["proposed"] == [1, 2, 3]
    assert told["isr"] == [1, 2]


def test_state_that_names_a_new_life_forgets_what_the_old_one_had() -> None:
    leadership = leader(1, 2, end=10)
    fetch(leadership, 2, 10)
    before = state(1, 2, version=1)
    members = {**before.incarnations, BrokerId(2): BrokerEpoch(8)}
    update(leadership, InSync(before.leader_epoch, 1, before.replicas, before.isr, members, ()))
    assert leadership.describe()["followers"][2]["broker_epoch"] == 8
    assert leadership.describe()["followers"][2]["log_end_offset"] < 10
    with pytest.raises(StaleBrokerEpoch):
        fetch(leadership, 2, 10, epoch=7)
