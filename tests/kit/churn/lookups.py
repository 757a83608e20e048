"""ListOffsets at both ends and by time, all the time; and what of the answers can be judged afterwards."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kit.churn.topics import Log
from kit.churn.world import ChurnThread, Unanswered, World
from kit.history import Op, Type

__all__ = ["LookUps", "LookUpsBesideDeletion", "wrong_look_ups"]

Column = NDArray[np.int64]

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
SPAN_MS = 30_000
"""So far back the times lie that are asked for where no record's is known."""
NEAR_START = 60
"""So many records from the log's start lie those whose times are asked for: their segments go next."""
KEPT_SHARE = 0.05
"""Of the answers, for the judgement: it goes through all records for each."""


class LookUp(NamedTuple):
    """One answer to a look-up by time, or for the highest timestamp."""

    log: Log
    asked: int
    begun: int
    ended: int
    offset: int
    timestamp: int


class LookUps(ChurnThread):
    """Asks each leader about all that it leads, where each log begins and ends and what a look-up finds."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.answers: list[LookUp] = []

    def step(self) -> None:
        self.pause(0.02)
        logs = self.world.topics.logs() if self.rng.random() < 0.02 else self.world.topics.busy()
        for broker, led in self._by_leader(logs).items():
            try:
                self._ends(broker, led)
                self._look_up(broker, led)
            except Unanswered:
                self.world.counts[f"{self.name}: unanswered"] += 1

    def _by_leader(self, logs: list[Log]) -> dict[int, list[Log]]:
        found: dict[int, list[Log]] = defaultdict(list)
        for log in logs:
            broker = self.world.leader(log, self.connections)
            if broker is not None:
                found[broker].append(log)
        return found

    def _ends(self, broker: int, logs: list[Log]) -> None:
        """The starts first: the ends that are asked for next show what retention has left."""
        for what, timestamp in (("starts", EARLIEST), ("ends", LATEST)):
            begun = time.monotonic_ns()
            told = self._ask(broker, dict.fromkeys(logs, timestamp))
            certain = [(log, offset) for log, (offset, _) in told.items() if self._is_certain(log, begun)]
            for log, offset in certain:
                if what == "starts":
                    log.start = offset
                else:
                    log.end = max(log.start, offset)
            self.world.recorder.add(
                self.name, begun, what, {}, {what: [[log.number, offset] for log, offset in certain]}
            )
            self.world.counts[f"{self.name}: {what}"] += len(certain)

    def _look_up(self, broker: int, logs: list[Log]) -> None:
        special = [MAX_TIMESTAMP, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED]
        asked = {log: self.rng.choice(special) if self.rng.random() < 0.4 else self._some_time(log) for log in logs}
        begun = time.monotonic_ns()
        told = self._ask(broker, asked)
        ended = time.monotonic_ns()
        for log, (offset, timestamp) in told.items():
            self.world.counts[f"{self.name}: by time" if asked[log] >= 0 else f"{self.name}: {asked[log]}"] += 1
            if asked[log] == LATEST_TIERED:
                if offset != -1:
                    self.world.fault(f"{log}: the last offset in tiered storage is {offset}")
            elif asked[log] != EARLIEST_LOCAL and self.rng.random() < KEPT_SHARE and self._is_certain(log, begun):
                self.answers.append(LookUp(log, asked[log], begun, ended, offset, timestamp))

    def _some_time(self, log: Log) -> int:
        """Near the log's start, where look-ups meet deletion, or any of late."""
        near = log.start + self.rng.randrange(NEAR_START)
        some = time.time_ns() // 1_000_000 - self.rng.randrange(SPAN_MS)
        return self.world.times.get((log.number, near), some)

    def _ask(self, broker: int, asked: dict[Log, int]) -> dict[Log, tuple[int, int]]:
        by_place = {(log.life.name, log.index): log for log in asked}
        answer = self.connections.list_offsets(broker, {place: asked[log] for place, log in by_place.items()})
        told = {}
        for place, (code, offset, timestamp) in answer.items():
            if code:
                self.world.judge_code(code, f"ListOffsets of {by_place[place]} at {asked[by_place[place]]}")
            else:
                told[by_place[place]] = (offset, timestamp)
        return told

    def _is_certain(self, log: Log, begun: int) -> bool:
        return self.world.topics.only(log.life.name, log.index, begun) is log


class LookUpsBesideDeletion(LookUps):
    """As fast as brokers answer, and only by time, where records are deleted all the time."""

    def __init__(self, world: World, name: str, names: frozenset[str]) -> None:
        super().__init__(world, name)
        self._names = names

    def step(self) -> None:
        logs = [log for log in self.world.topics.busy() if log.life.name in self._names]
        if not logs:
            self.pause(0.1)
        for broker, led in self._by_leader(logs).items():
            try:
                self._look_up(broker, led)
            except Unanswered:
                self.world.counts[f"{self.name}: unanswered"] += 1
                self.pause(0.02)


class _Visible:
    """When records were certainly committed, and from where on they were certainly kept."""

    def __init__(self, world: World, ops: list[Op]) -> None:
        self.since: dict[int, dict[int, int]] = defaultdict(dict)
        """Log → offset → when it was first acknowledged or read."""
        self.deletes: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """Log → when a DeleteRecords was asked, and up to where; without an end where it was for all."""
        self.trimmed = {log.number for life in world.topics.all() for log in life.logs if life.retention}
        self._columns: dict[int, tuple[Column, Column, Column]] = {}
        begun = {op.id: op for op in ops if op.type is Type.INVOKE}
        for op in ops:
            if op.type is Type.INVOKE and op.f == "delete":
                most = op.v["offset"] if op.v["offset"] >= 0 else 1 << 63
                self.deletes[op.v["partition"]].append((op.t, most))
            elif op.type is Type.OK and op.f == "send" and "offset" in op.v:
                self._see(begun[op.id].v["partition"], op.v["offset"], op.t)
            elif op.type is Type.OK and op.f == "poll":
                for number, offset, _ in op.v["records"]:
                    self._see(number, offset, op.t)

    def _see(self, number: int, offset: int, when: int) -> None:
        since = self.since[number]
        since[offset] = min(since.get(offset, when), when)

    def kept_from(self, number: int, when: int) -> int:
        return max((most for asked, most in self.deletes[number] if asked <= when), default=0)

    def columns(self, number: int, times: Mapping[tuple[int, int], int]) -> tuple[Column, Column, Column]:
        """Of the records whose timestamps are known: offsets, since when each is visible, timestamps."""
        if number not in self._columns:
            rows = [(o, since, times[number, o]) for o, since in self.since[number].items() if (number, o) in times]
            offsets, since, timestamps = np.array(rows, dtype=np.int64).reshape(-1, 3).T
            self._columns[number] = offsets, since, timestamps
        return self._columns[number]


def wrong_look_ups(world: World, answers: list[LookUp], ops: list[Op]) -> Iterator[str]:
    """Answers that records contradict which were certainly there: those below the answer that fit as well, or better.

    Only in logs without retention: of the others nobody knows from here what was there at the time.
    """
    visible = _Visible(world, ops)
    for answer in answers:
        number, times = answer.log.number, world.times
        where = f"{answer.log}: a look-up at {answer.asked} was answered by offset {answer.offset}, {answer.timestamp}"
        if answer.offset >= 0:
            known = times.get((number, answer.offset))
            if known is not None and known != answer.timestamp:
                yield f"{where}, but the record has the timestamp {known}"
            if answer.asked >= 0 and answer.timestamp < answer.asked:
                yield f"{where}, which is earlier"
        if number in visible.trimmed:
            continue
        offsets, since, timestamps = visible.columns(number, times)
        there = (offsets >= visible.kept_from(number, answer.ended)) & (since < answer.begun)
        wrong = np.zeros(len(there), dtype=bool)
        if answer.asked >= 0:
            before = offsets < answer.offset if answer.offset >= 0 else True
            wrong = there & before & (timestamps >= answer.asked)
        elif answer.asked == MAX_TIMESTAMP:
            wrong = there & (timestamps > answer.timestamp)
        for at in np.flatnonzero(wrong):
            yield f"{where}, but the record at {offsets[at]} has the timestamp {timestamps[at]}"
