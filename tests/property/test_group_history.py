"""The checker of group histories is checked: it takes what a correct group does for valid, and rejects each mutant.

Histories come from a model: one log of three partitions, members that own, hand out, commit, hand over in order, die,
and are stopped until others have taken over. Each mutation makes one anomaly and no promise about others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from kit.group_history import Anomaly, Event, judge, parse

PARTITIONS = 3
SEEDS = range(30)
Events = list[Event]


class Model:
    """A correct group under random fortunes; what its members tell by the end."""

    def __init__(self, rng: random.Random) -> None:
        self.events: Events = []
        self.committed = [0] * PARTITIONS
        self.ends = [0] * PARTITIONS
        self._rng = rng
        self._now = 0.0
        self._born = 0
        self._owners: list[str] = []
        self._positions = [0] * PARTITIONS

    def run(self) -> Events:
        self._owners = [self._member() for _ in range(PARTITIONS)]
        for partition in range(PARTITIONS):
            self._assign(partition)
        for _ in range(60):
            partition = self._rng.randrange(PARTITIONS)
            match self._rng.randrange(6):
                case 0:
                    self._hand_over(partition)
                case 1:
                    self._fail(partition, self._rng.random() < 0.5)
                case 2:
                    self._commit(partition)
                case _:
                    self._poll(partition)
        for partition in range(PARTITIONS):
            self._poll(partition, to_the_end=True)
            self._commit(partition)
        return self.events

    def _tell(self, member: str, what: str, **v: Any) -> None:
        self._now += 1.0
        self.events.append(Event(self._now, member, what, v))

    def _member(self) -> str:
        self._born += 1
        return f"m{self._born}"

    def _assign(self, partition: int) -> None:
        self._positions[partition] = self.committed[partition]
        self._tell(self._owners[partition], "assigned", partition=partition, offset=self.committed[partition])

    def _poll(self, partition: int, *, to_the_end: bool = False) -> None:
        first = self._positions[partition]
        last = max(first + self._rng.randrange(5), self.ends[partition] - 1 if to_the_end else 0)
        self._positions[partition] = last + 1
        self.ends[partition] = max(self.ends[partition], last + 1)
        self._tell(self._owners[partition], "poll", begun=self._now + 0.5, ranges=[[partition, first, last]])

    def _commit(self, partition: int, refused: str = "", member: str = "") -> None:
        offset = self._positions[partition]
        member = member or self._owners[partition]
        self._tell(member, "commit", begun=self._now + 0.5, partition=partition, offset=offset, refused=refused)
        if not refused:
            self.committed[partition] = offset

    def _hand_over(self, partition: int) -> None:
        self._tell(self._owners[partition], "revoked", partition=partition)
        self._commit(partition)
        self._owners[partition] = self._member()
        self._assign(partition)

    def _fail(self, partition: int, is_stopped: bool) -> None:
        before = self._owners[partition]
        self._tell(before, "failed")
        self._owners[partition] = self._member()
        self._assign(partition)
        if is_stopped:
            self._commit(partition, "IllegalGeneration", before)
            self._tell(before, "lost", partition=partition)


def at(events: Events, what: str, rng: random.Random, where: Callable[[int], bool] = lambda place: True) -> int:
    """The place of some event of that kind."""
    return rng.choice([place for place, event in enumerate(events) if event.what == what and where(place)])


def changed(events: Events, place: int, **v: Any) -> Events:
    event = events[place]
    return [*events[:place], event._replace(v={**event.v, **v}), *events[place + 1 :]]


def owner_before(events: Events, place: int) -> Event | None:
    """The assignment of the partition before the one at ``place``."""
    partition = events[place].v["partition"]
    found = [event for event in events[:place] if event.what == "assigned" and event.v["partition"] == partition]
    return found[-1] if found else None


def has_handed_out(events: Events, member: str, partition: int) -> bool:
    return any(
        event.what == "poll" and event.member == member and event.v["ranges"][0][0] == partition for event in events
    )


def successor(events: Events, place: int) -> Event:
    """The assignment of the partition after what is at ``place``."""
    partition = events[place].v["partition"]
    return next(event for event in events[place:] if event.what == "assigned" and event.v["partition"] == partition)


def overlap(events: Events, rng: random.Random) -> Events:
    """A member gives up only after another has begun."""

    def matters(place: int) -> bool:
        members = (events[place].member, successor(events, place).member)
        return all(has_handed_out(events, member, events[place].v["partition"]) for member in members)

    place = at(events, "revoked", rng, matters)
    late = events[place]._replace(t=successor(events, place).t + 0.25)
    return [*events[:place], late, *events[place + 1 :]]


def not_owned(events: Events, rng: random.Random) -> Events:
    place = at(events, "poll", rng)
    return [*events[:place], events[place]._replace(member="stranger"), *events[place + 1 :]]


def skip(events: Events, rng: random.Random) -> Events:
    place = at(events, "poll", rng)
    [[partition, first, last]] = events[place].v["ranges"]
    return changed(events, place, ranges=[[partition, first + 1, last + 1]])


def stale_commit(events: Events, rng: random.Random) -> Events:
    """The store takes what it had to refuse."""
    place = at(events, "assigned", rng, lambda place: owner_before(events, place) is not None)
    assigned, before = events[place], owner_before(events, place)
    assert before is not None
    commit = {"begun": assigned.t + 0.25, "partition": assigned.v["partition"], "offset": 0, "refused": ""}
    return [*events, Event(assigned.t + 0.5, before.member, "commit", commit)]


def committed_ahead(events: Events, rng: random.Random) -> Events:
    place = at(events, "commit", rng, lambda place: not events[place].v["refused"])
    return changed(events, place, offset=events[place].v["offset"] + 1_000)


def progress_lost(events: Events, rng: random.Random) -> Events:
    place = at(events, "assigned", rng, lambda place: events[place].v["offset"] > 0)
    return changed(events, place, offset=events[place].v["offset"] - 1)


def lost(events: Events, rng: random.Random) -> Events:
    """The last record of a partition is handed out to nobody."""
    polls = [event for event in events if event.what == "poll"]
    partition = rng.randrange(PARTITIONS)
    end = max(last for event in polls for which, _, last in event.v["ranges"] if which == partition)
    gone = [event for event in polls if event.v["ranges"][0][::2] == [partition, end]]
    return [event for event in events if event not in gone]


MUTATIONS = {
    Anomaly.OVERLAP: overlap,
    Anomaly.NOT_OWNED: not_owned,
    Anomaly.SKIP: skip,
    Anomaly.STALE_COMMIT: stale_commit,
    Anomaly.COMMITTED_AHEAD: committed_ahead,
    Anomaly.PROGRESS_LOST: progress_lost,
    Anomaly.LOST: lost,
}


def test_what_a_correct_group_does_is_valid() -> None:
    for seed in SEEDS:
        model = Model(random.Random(seed))
        judgement = judge(model.run(), model.ends, model.committed)
        assert judgement.findings == [], seed
        assert judgement.handed_out - judgement.repeated == sum(model.ends)


@pytest.mark.parametrize("anomaly", Anomaly)
def test_each_anomaly_is_found(anomaly: Anomaly) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        model = Model(rng)
        events = MUTATIONS[anomaly](model.run(), rng)
        assert anomaly in judge(events, model.ends, model.committed).anomalies, seed


def test_a_group_that_stands_elsewhere_than_at_the_end_has_lost() -> None:
    model = Model(random.Random(0))
    events = model.run()
    assert judge(events, model.ends, [0] * PARTITIONS).anomalies == {Anomaly.LOST}


def test_a_line_that_is_being_written_is_left_out() -> None:
    text = '{"t":1.5,"what":"lost","partition":2}\n{"t":1.7,"wh'
    assert parse("m1", text) == [Event(1.5, "m1", "lost", {"partition": 2})]
    assert parse("m1", "") == []
