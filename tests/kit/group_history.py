"""What the members of a consumer group did, each in a file of its own, and whether that was right.

A line is a JSON object; it is written, past all buffers, before the member goes on, so that a member which is killed
has told all that it did. ``t`` is the machine's monotonic clock in seconds, which all processes share; ``begun`` is the
same clock when a call began, ``t`` when it had returned.

| what | other fields | meaning |
|---|---|---|
| assigned | partition, offset | it owns the partition and begins to read there |
| revoked | partition | it gives the partition up: it has stopped handing records out, and commits |
| lost | partition | it has found out that the partition is not its own any more |
| poll | begun, ranges: [[partition, first, last], …] | records of these offsets were handed out |
| commit | begun, partition, offset, refused | so far it has read; ``refused`` is the error's name, or "" |
| failed | | it was killed or stopped, as whoever did it has told |

Times make eras: from ``assigned`` to ``revoked``, or to the beginning of the last poll that handed something out; one
in which nothing was handed out hurts nobody. All is about one topic, whose partitions are read from offset 0.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


class Anomaly(StrEnum):
    OVERLAP = "overlap"
    """Two members took one partition for their own at one time."""
    NOT_OWNED = "not owned"
    """Records were handed out of a partition that the member had not been given, or had given up."""
    SKIP = "skip"
    """Records were left out, or handed out twice, within one era."""
    STALE_COMMIT = "stale commit"
    """A commit that began when another owned the partition was taken."""
    COMMITTED_AHEAD = "committed ahead"
    """Something was committed that nobody had been handed: whoever reads on leaves it out."""
    PROGRESS_LOST = "progress lost"
    """An era began before an offset that had been committed, or before where an orderly one had ended."""
    LOST = "lost"
    """Nobody was handed the record, or the group does not stand behind it at the end."""


class Event(NamedTuple):
    t: float
    member: str
    what: str
    v: Mapping[str, Any]


@dataclass(slots=True)
class Era:
    """One member's time with one partition."""

    member: str
    partition: int
    begun: float
    offset: int
    """Where it began to read."""
    position: int
    until: float
    has_handed_out: bool = False
    is_orderly: bool = False
    """It was given up, by commit and release."""
    is_over: bool = False


@dataclass(slots=True)
class Judgement:
    findings: list[tuple[Anomaly, str]] = field(default_factory=list)
    handed_out: int = 0
    repeated: int = 0
    """Handed out once more than once, as after a death; also by how many."""
    commits: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    eras: dict[int, list[Era]] = field(default_factory=lambda: defaultdict(list))
    """By partition, by their beginnings."""

    @property
    def anomalies(self) -> set[Anomaly]:
        return {anomaly for anomaly, _ in self.findings}


def parse(member: str, text: str) -> list[Event]:
    """What a member has told; a last line that is not whole is left out."""
    return [_event(member, json.loads(line)) for line in text.split("\n")[:-1]]


def _event(member: str, fields: dict[str, Any]) -> Event:
    return Event(fields.pop("t"), member, fields.pop("what"), fields)


def judge(events: Iterable[Event], ends: Sequence[int], committed: Sequence[int]) -> Judgement:
    """``ends``: how many records each partition has, in the end; ``committed``: what the group stands at, then."""
    judge = _Judge(len(ends))
    for event in sorted(events, key=lambda event: event.t):
        getattr(judge, event.what)(event)
    judge.end(ends, committed)
    return judge.result


class _Judge:
    """Takes events in the order of their times."""

    def __init__(self, partitions: int) -> None:
        self.result = Judgement()
        self._delivered: list[set[int]] = [set() for _ in range(partitions)]
        self._prefix = [0] * partitions
        """All below was handed out."""
        self._committed: list[int] = [0] * partitions
        self._open: dict[tuple[str, int], Era] = {}

    def assigned(self, event: Event) -> None:
        partition, offset = event.v["partition"], event.v["offset"]
        before = self.result.eras[partition]
        due = before[-1].position if before and before[-1].is_orderly else self._committed[partition]
        if offset < max(due, self._committed[partition]):
            self._found(Anomaly.PROGRESS_LOST, event, f"begins at {offset}, not at {due}")
        era = Era(event.member, partition, event.t, offset, offset, event.t)
        before.append(era)
        self._open[event.member, partition] = era

    def revoked(self, event: Event) -> None:
        if (era := self._era(event, event.v["partition"])) is not None:
            era.until, era.is_orderly, era.is_over = event.t, True, True

    def lost(self, event: Event) -> None:
        era = self._open.pop((event.member, event.v["partition"]), None)
        if era is not None:
            era.is_over, era.is_orderly = True, False

    def failed(self, event: Event) -> None:
        """What it had given up, and nobody has taken over yet, may not be committed."""
        for eras in self.result.eras.values():
            if eras[-1].member == event.member:
                eras[-1].is_orderly = False

    def poll(self, event: Event) -> None:
        for partition, first, last in event.v["ranges"]:
            delivered = self._delivered[partition]
            offsets = range(first, last + 1)
            self.result.handed_out += len(offsets)
            self.result.repeated += sum(offset in delivered for offset in offsets)
            delivered.update(offsets)
            while self._prefix[partition] in delivered:
                self._prefix[partition] += 1
            era = self._era(event, partition)
            if era is None:
                self._found(Anomaly.NOT_OWNED, event, f"handed out {first}-{last} of partition {partition}")
                continue
            if first != era.position:
                self._found(Anomaly.SKIP, event, f"handed out {first} of partition {partition} at {era.position}")
            era.position, era.has_handed_out = last + 1, True
            era.until = max(era.until, event.v["begun"])

    def commit(self, event: Event) -> None:
        partition, offset = event.v["partition"], event.v["offset"]
        if event.v["refused"]:
            self.result.refused[event.v["refused"]] += 1
            return
        self.result.commits += 1
        if offset > self._prefix[partition]:
            self._found(Anomaly.COMMITTED_AHEAD, event, f"{offset}, but {self._prefix[partition]} were handed out")
        newer = [era for era in self.result.eras[partition] if era.begun < event.v["begun"]]
        if newer and newer[-1].member != event.member:
            self._found(Anomaly.STALE_COMMIT, event, f"{offset}, though {newer[-1].member} owned the partition")
        self._committed[partition] = max(self._committed[partition], offset)

    def end(self, ends: Sequence[int], committed: Sequence[int]) -> None:
        for partition, end in enumerate(ends):
            eras = [era for era in self.result.eras[partition] if era.has_handed_out]
            for number, era in enumerate(eras):
                for later in eras[number + 1 :]:
                    if later.begun < era.until and later.member != era.member:
                        text = f"{era.member} until {era.until:.3f}, {later.member} from {later.begun:.3f}"
                        self.result.findings.append((Anomaly.OVERLAP, f"partition {partition}: {text}"))
            missing = set(range(end)) - self._delivered[partition]
            if missing or committed[partition] != end:
                text = f"{len(missing)} of {end} not handed out, the first {min(missing, default=None)}"
                stands = f"the group stands at {committed[partition]}"
                self.result.findings.append((Anomaly.LOST, f"partition {partition}: {text}; {stands}"))

    def _era(self, event: Event, partition: int) -> Era | None:
        """That which the member has open."""
        era = self._open.get((event.member, partition))
        return None if era is None or era.is_over else era

    def _found(self, anomaly: Anomaly, event: Event, text: str) -> None:
        where = event.v.get("partition", "")
        self.result.findings.append((anomaly, f"{event.t:.3f} {event.member} {event.what} {where}: {text}"))
