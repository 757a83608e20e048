"""Who leads and who is in sync, rule by rule."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.coordination.control.leadership import ElectionRules, Standing, Terms
from raylog.coordination.metadata.model import BrokerInfo, ClusterState, PartitionState, TopicState
from raylog.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)

TP = TopicPartition(TopicName("flights"), PartitionIndex(0))
ID = TopicId(UUID(int=1))
IN_SYNC = BrokerEpoch(5)
"""The incarnation in which all members of these tests were in sync."""


def partition(leader: int, isr: str, elr: str = "", replicas: str = "123", epoch: int = 7) -> PartitionState:
    """Of brokers with one digit."""
    members = {BrokerId(int(b)): IN_SYNC for b in isr + elr}
    return PartitionState(
        _ids(replicas), BrokerId(leader), LeaderEpoch(epoch), _ids(isr), version=3, elr=_ids(elr), incarnations=members
    )


def _ids(digits: str) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(int(digit)) for digit in digits)


def standing(
    live: str,
    *,
    back: str = "",
    lost: str = "",
    unsynced: str = "",
    leaving: str = "",
    offline: str = "",
    unaware: str = "",
    fenced: str = "",
) -> Standing:
    """``live`` never died, ``back`` came back with all data, ``unsynced`` without its end, ``lost`` without any."""
    brokers = {}
    for digit in live + back + unsynced + lost:
        epoch = IN_SYNC if digit in live else BrokerEpoch(IN_SYNC + 1)
        intact_since = epoch if digit in lost + unsynced else BrokerEpoch(1)
        disks_since = epoch if digit in lost else BrokerEpoch(1)
        broker = BrokerId(int(digit))
        brokers[broker] = BrokerInfo(broker, epoch, (), intact_since=intact_since, disks_since=disks_since)
    disks = {broker: {(ID, TP.partition)} for broker in _ids(offline)}
    served = lambda broker, tp: str(broker) in unaware  # noqa: E731
    return Standing(brokers, disks, frozenset(_ids(leaving)), served, frozenset(_ids(fenced)))


def settle(
    before: PartitionState, now: Standing, min_isr: int = 1, *, unclean: bool = False
) -> tuple[PartitionState, str]:
    return ElectionRules().settled(TP, before, Terms(ID, min_isr, unclean), now)


def shown(p: PartitionState) -> tuple[int, int, str, str]:
    """Leader, leader epoch, ISR, ELR."""
    return p.leader, p.leader_epoch, "".join(map(str, p.isr)), "".join(map(str, p.elr))


CASES: Mapping[str, tuple[PartitionState, Standing, int, tuple[int, int, str, str]]] = {
    # who dies
    "a dead follower leaves the ISR, in the same leader epoch": (
        partition(1, "123"), standing("12"), 1, (1, 7, "12", "")),
    "a dead leader gives way to the first live member": (
        partition(1, "123"), standing("23"), 1, (2, 8, "23", "")),
    "preference is the order of the replicas, not of the ISR": (
        partition(1, "132"), standing("23"), 1, (2, 8, "32", "")),
    "who is not in the ISR does not lead": (
        partition(1, "13"), standing("23"), 1, (3, 8, "3", "")),
    "the last member does not leave": (
        partition(1, "1"), standing("23"), 1, (-1, 7, "1", "")),
    "when all die at once, all may lead again": (
        partition(1, "123"), standing(""), 1, (-1, 7, "123", "")),
    # below the minimum
    "who leaves below the minimum stays eligible": (
        partition(1, "12"), standing("13"), 2, (1, 7, "1", "2")),
    "who leaves above the minimum does not": (
        partition(1, "123"), standing("12"), 2, (1, 7, "12", "")),
    "a leader that dies stays eligible, too": (
        partition(1, "12"), standing("23"), 2, (2, 8, "2", "1")),
    "the minimum is no more than there are replicas": (
        partition(1, "1", replicas="1"), standing("1"), 3, (1, 7, "1", "")),
    "who is no replica any more is not eligible": (
        partition(1, "14"), standing("14"), 2, (1, 7, "1", "")),
    "a minimum that is reached empties the ELR": (
        partition(1, "1", "2"), standing("12"), 1, (1, 7, "1", "")),
    "who is eligible stays so while nothing changes": (
        partition(1, "1", "2"), standing("12"), 2, (1, 7, "1", "2")),
    # who leads next
    "an eligible replica leads when the ISR is dead, and is the ISR": (
        partition(-1, "1", "2"), standing("3", back="2"), 2, (2, 8, "2", "1")),
    "the ISR goes before the ELR": (
        partition(-1, "2", "1"), standing("", back="12"), 2, (2, 8, "2", "1")),
    # restarts
    "a leader's new incarnation is a new leader epoch": (
        partition(1, "1", replicas="1"), standing("", back="1"), 1, (1, 8, "1", "")),
    "a restarted leader that is not preferred gives way": (
        partition(2, "123"), standing("13", back="2"), 1, (1, 8, "123", "")),
    "a follower that restarted with all its data stays in the ISR": (
        partition(1, "123"), standing("13", back="2"), 1, (1, 7, "123", "")),
    "after a blackout all come back": (
        partition(1, "123"), standing("", back="123"), 1, (1, 8, "123", "")),
    # lost data
    "a follower that lost its data leaves the ISR and is not eligible": (
        partition(1, "12"), standing("1", lost="2"), 2, (1, 7, "1", "")),
    "a leader that lost its data gives way": (
        partition(1, "12"), standing("2", lost="1"), 1, (2, 8, "2", "")),
    "an empty disk waits for one that is not": (
        partition(-1, "12"), standing("", lost="1"), 1, (-1, 7, "2", "")),
    "an empty last member waits for an eligible one": (
        partition(-1, "1", "2"), standing("", lost="1"), 2, (-1, 7, "1", "2")),
    "an eligible one leads over an empty last member": (
        partition(-1, "1", "2"), standing("", lost="1", back="2"), 2, (2, 8, "2", "")),
    "an empty eligible one is none": (
        partition(-1, "1", "2"), standing("", lost="2"), 2, (-1, 7, "1", "")),
    "when all are back and none is intact, the first leads": (
        partition(-1, "23", "1"), standing("", lost="123"), 2, (2, 8, "2", "")),
    "the last resort prefers who was in the ISR": (
        partition(-1, "3", "1"), standing("", lost="13"), 2, (3, 8, "3", "")),
    # disks and drains
    "a leader whose disk failed gives way": (
        partition(1, "123"), standing("123", offline="1"), 1, (2, 8, "23", "")),
    "a follower whose disk failed leaves the ISR": (
        partition(1, "123"), standing("123", offline="3"), 1, (1, 7, "12", "")),
    "a failed disk of the last member makes it offline": (
        partition(1, "1"), standing("123", offline="1"), 1, (-1, 7, "1", "")),
    "a leader that is drained gives way, and stays in the ISR until it knows": (
        partition(1, "123"), standing("123", leaving="1", unaware="1"), 1, (2, 8, "123", "")),
    "a former leader that is drained and does not know stays in the ISR": (
        partition(2, "123"), standing("123", leaving="1", unaware="1"), 1, (2, 7, "123", "")),
    "a former leader that is drained leaves the ISR once it knows": (
        partition(2, "123"), standing("123", leaving="1"), 1, (2, 7, "23", "")),
    "a former leader that does not know leaves the ISR with its incarnation": (
        partition(2, "123"), standing("23", unaware="1"), 1, (2, 7, "23", "")),
    "a former leader that says itself that its disk failed leaves the ISR": (
        partition(2, "123"), standing("123", offline="1", unaware="1"), 1, (2, 7, "23", "")),
    "a follower that is drained leaves the ISR": (
        partition(1, "123"), standing("123", leaving="2"), 1, (1, 7, "13", "")),
    "who is drained leads what nobody else can": (
        partition(1, "1"), standing("123", leaving="1"), 1, (1, 7, "1", "")),
    "who is drained is elected when nobody else can lead": (
        partition(1, "12"), standing("23", leaving="2"), 1, (2, 8, "2", "")),
    "below the minimum the drained one stays eligible": (
        partition(2, "12"), standing("12", leaving="1"), 2, (2, 7, "2", "1")),
    "who lost only what was not synced waits where it was": (
        partition(-1, "12"), standing("", unsynced="1"), 1, (-1, 7, "12", "")),
    "and leads, when all are back, over who lost a disk": (
        partition(-1, "12"), standing("", lost="1", unsynced="2"), 1, (2, 8, "2", "")),
    "also from the ELR": (
        partition(-1, "1", "2"), standing("", lost="1", unsynced="2"), 2, (2, 8, "2", "")),
    "and below the minimum it stays eligible beside a leader": (
        partition(1, "12"), standing("1", unsynced="2"), 2, (1, 7, "1", "2")),
    "but not over one that lost nothing": (
        partition(-1, "1", "2"), standing("", unsynced="1", back="2"), 2, (2, 8, "2", "1")),
    # fenced
    "a fenced member leads after eligible ones": (
        partition(-1, "2", "3"), standing("23", fenced="2"), 2, (3, 8, "3", "2")),
    "a fenced member leads before fenced eligible ones": (
        partition(-1, "2", "3"), standing("23", fenced="23"), 2, (2, 8, "2", "3")),
    "a fenced member leads after all others": (
        partition(1, "123"), standing("23", fenced="2"), 1, (3, 8, "23", "")),
    "also after one that is drained": (
        partition(1, "123"), standing("23", fenced="2", leaving="3"), 1, (3, 8, "23", "")),
    "but it leads when it is the only one": (
        partition(1, "12"), standing("23", fenced="2"), 1, (2, 8, "2", "")),
    "and where it leads it stays": (
        partition(2, "123"), standing("23", fenced="2"), 1, (2, 7, "23", "")),
    "among the eligible, too": (
        partition(-1, "", "23"), standing("23", fenced="2"), 2, (3, 8, "3", "2")),
}  # fmt: skip


@pytest.mark.parametrize(("before", "now", "min_isr", "expected"), CASES.values(), ids=CASES.keys())
def test_rule(before: PartitionState, now: Standing, min_isr: int, expected: tuple[int, int, str, str]) -> None:
    after, risk = settle(before, now, min_isr)
    assert shown(after) == expected
    assert bool(risk) == (after.is_online and after.leader not in _intact(before, now))
    again, _ = settle(after, now, min_isr)
    assert again is after, "what is settled stays"


def _intact(p: PartitionState, now: Standing) -> set[BrokerId]:
    return {b for b in (*p.isr, *p.elr) if b in now.brokers and now.brokers[b].intact_since <= IN_SYNC}


def test_members_are_recorded_in_the_incarnation_that_is_in_sync() -> None:
    after, _ = settle(partition(1, "123"), standing("1", back="2"), 1)
    assert after.incarnations == {1: IN_SYNC, 2: IN_SYNC + 1}
    after, _ = settle(partition(1, "12"), standing("1"), 2)
    assert after.incarnations == {1: IN_SYNC, 2: IN_SYNC}, "of who is eligible it is the one that was"


def test_what_another_program_wrote_is_taken_for_intact_and_led_anew() -> None:
    before = replace(partition(1, "12"), incarnations={})
    after, risk = settle(before, standing("", lost="12"))
    assert (shown(after), risk) == ((1, 8, "12", ""), "")
    assert set(after.incarnations) == {1, 2}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (partition(1, "1"), standing("23"), (2, 8, "2", "")),
        (partition(-1, "1", "2"), standing("3"), (3, 8, "3", "")),
        (partition(-1, "1", "2"), standing("3", lost="1"), (1, 8, "1", "")),
        (partition(-1, "1", "2"), standing("3", lost="2"), (2, 8, "2", "")),
        (partition(-1, "1"), standing(""), (-1, 7, "1", "")),
        (partition(1, "1"), standing("123", offline="123"), (-1, 7, "1", "")),
        (partition(1, "1"), standing("23", fenced="2"), (3, 8, "3", "")),
    ],
    ids=[
        "any live one",
        "even not eligible",
        "rather of the ISR",
        "rather of the ELR",
        "nobody",
        "no disk",
        "not fenced",
    ],
)
def test_an_unclean_election_takes_whom_it_can(
    before: PartitionState, now: Standing, expected: tuple[int, int, str, str]
) -> None:
    after, risk = settle(before, now, 2, unclean=True)
    assert shown(after) == expected
    assert bool(risk) == after.is_online
    assert shown(settle(before, now, 2)[0])[0] == -1, "where they are allowed only"


def test_an_unclean_election_is_the_last_thing_to_do() -> None:
    for now in (standing("123"), standing("23"), standing("", back="23")):
        before = partition(1, "123")
        assert settle(before, now, unclean=True) == settle(before, now)


def test_a_partition_without_a_state_begins_with_who_lives() -> None:
    fresh = PartitionState(_ids("123"))
    after, _ = settle(fresh, standing("23", leaving="2"))
    assert (after.leader, after.leader_epoch, after.isr) == (3, 0, (2, 3))
    assert after.incarnations == {2: IN_SYNC, 3: IN_SYNC}
    assert settle(fresh, standing(""))[0] is fresh


@pytest.mark.parametrize(("fenced", "isr"), [("1", (2, 3)), ("123", (1, 2, 3))])
def test_fenced_brokers_begin_no_partition_that_others_can(fenced: str, isr: tuple[int, ...]) -> None:
    after, _ = settle(PartitionState(_ids("123")), standing("123", fenced=fenced))
    assert (after.leader, after.isr, set(after.incarnations)) == (isr[0], isr, set(isr))


def test_a_topics_terms_follow_its_settings_and_the_brokers() -> None:
    asked = []

    def min_isr(topic: TopicState, state: ClusterState) -> int:
        asked.append(topic.name)
        return int(topic.configs.get("min.insync.replicas", state.broker_configs.get("<default>", {}).get("m", 1)))

    rules = ElectionRules(min_isr=min_isr)
    topic = TopicState(TP.topic, ID, (partition(1, "12"),), {})
    state = ClusterState(topics={TP.topic: topic})
    assert [rules.terms(topic, state).min_isr for _ in range(3)] == [1, 1, 1]
    assert len(asked) == 1, "each time may log what cannot be read"
    assert rules.terms(topic, replace(state, broker_configs={"<default>": {"m": "2"}})).min_isr == 2
    assert rules.terms(replace(topic, configs={"min.insync.replicas": "3"}), state).min_isr == 3


# --- whatever happens

digits = st.sets(st.sampled_from("1234"), max_size=4).map(lambda found: "".join(sorted(found)))


@st.composite
def situations(draw: st.DrawFn) -> tuple[PartitionState, Standing, int, bool]:
    isr = draw(digits.filter(bool))
    elr = "".join(b for b in draw(digits) if b not in isr)
    leader = draw(st.sampled_from(["-1", *isr]))
    fates = {digit: draw(st.sampled_from(["live", "back", "unsynced", "lost", "dead"])) for digit in "1234"}
    now = standing(
        *("".join(d for d in fates if fates[d] == "live"),),
        back="".join(d for d in fates if fates[d] == "back"),
        unsynced="".join(d for d in fates if fates[d] == "unsynced"),
        lost="".join(d for d in fates if fates[d] == "lost"),
        leaving=draw(digits),
        offline=draw(digits),
    )
    state = partition(int(leader), isr, elr, "".join(draw(st.permutations("1234"))))
    return state, now, draw(st.integers(1, 3)), draw(st.booleans())


@given(situations())
def test_whatever_happens_the_rules_hold(situation: tuple[PartitionState, Standing, int, bool]) -> None:
    before, now, min_isr, unclean = situation
    after, risk = settle(before, now, min_isr, unclean=unclean)
    live = {b for b in now.brokers if b not in now.offline}
    intact = {b for b in _intact(before, now) if b in live}
    assert after.isr, "it is never forgotten who was in sync"
    assert not set(after.isr) & set(after.elr)
    assert set(after.incarnations) == {*after.isr, *after.elr}
    assert after.leader_epoch - before.leader_epoch in (0, 1)
    if after.is_online:
        assert after.leader in after.isr
        assert after.leader in live
        assert all(after.incarnations[b] == now.brokers[b].epoch for b in after.isr)
        assert after.leader in intact or not intact, "who lost data leads over none that did not"
        assert bool(risk) == (after.leader not in intact)
        with_disks = {b for b in (*before.isr, *before.elr) if b in live and now.brokers[b].disks_since <= IN_SYNC}
        assert after.leader in with_disks or not with_disks, "who lost a disk leads over none that did not"
        assert unclean or not risk or {*before.isr, *before.elr} <= live, "nobody better could come back"
        is_same = (after.leader, after.incarnations[after.leader]) == (
            before.leader,
            before.incarnations.get(before.leader),
        )
        assert (after.leader_epoch == before.leader_epoch) == is_same, "one epoch, one life of one leader"
        if not risk:
            assert set(after.isr) <= intact & set(before.isr) | {after.leader}
            assert len(after.isr) >= min_isr or intact & set(before.isr) <= {*after.isr, *after.elr}
    else:
        assert not intact, "who can lead does"
        assert set(after.isr) <= set(before.isr)
        assert {b for b in before.isr if b not in live} <= set(after.isr), "who may come back is waited for"
        assert {b for b in before.elr if b not in live} <= set(after.elr)
        assert {b for b in before.isr if b in now.brokers and now.brokers[b].disks_since <= IN_SYNC} <= set(after.isr)
    until_told = replace(now, unaware=lambda broker, tp: broker == before.leader or now.unaware(broker, tp))
    assert settle(after, until_told, min_isr, unclean=unclean)[0] is after, "all is done until who led knows of it"


# --- many partitions


def cluster(topics: int, partitions: int, brokers: Collection[int]) -> ClusterState:
    infos = {BrokerId(b): BrokerInfo(BrokerId(b), IN_SYNC, ()) for b in brokers}
    made = {}
    for n in range(topics):
        name = TopicName(f"t{n}")
        states = []
        for index in range(partitions):
            replicas = tuple(BrokerId(b) for b in [*brokers][index % 3 :] + [*brokers][: index % 3])
            incarnations = MappingProxyType(dict.fromkeys(replicas, IN_SYNC))
            states.append(PartitionState(replicas, replicas[0], isr=replicas, version=0, incarnations=incarnations))
        made[name] = TopicState(name, TopicId(UUID(int=n + 1)), tuple(states))
    return ClusterState("c", BrokerId(1), ControllerEpoch(1), infos, made)


@pytest.mark.parametrize(("topics", "partitions"), [(1, 1_000), (1_000, 1)])
def test_a_thousand_partitions_are_decided_in_a_fraction_of_a_second(topics: int, partitions: int) -> None:
    state = cluster(topics, partitions, (1, 2, 3))
    gone = {b: info for b, info in state.brokers.items() if b != 1}
    started = time.process_time()
    changes = ElectionRules().decide(state.with_brokers(gone), Standing(gone))
    took = time.process_time() - started
    assert len(changes) == 1_000
    assert all(change.new.isr == tuple(b for b in change.old.isr if b != 1) for change in changes)
    assert took < 1.0
    assert ElectionRules().decide(state, Standing(state.brokers)) == []
