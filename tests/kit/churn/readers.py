"""Readers by topic id: sessions over all that a broker leads, and single fetches at random offsets."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable
from uuid import UUID

from kit.churn.topics import Log, value_of
from kit.churn.world import ChurnThread, Unanswered, World
from raylog.protocol.errors import ErrorCode
from raylog.protocol.records import Record, decode_batches
from raylog.protocol.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from raylog.protocol.wire.primitives import ZERO_UUID

__all__ = ["RandomFetcher", "SessionReader", "bounds_at_leader"]

LATEST, EARLIEST = -1, -2
BY_ID, BY_NAME = 16, 12
PART_BYTES = 64 * 1024
REFUSED_S = 60.0
"""So long a fetch within a log's bounds may be refused as out of range: the bounds may have moved meanwhile."""
SESSION_ERRORS = frozenset(
    {
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
    }
)
Key = tuple[UUID, int]


def note_records(world: World, log: Log, records: Iterable[Record]) -> list[tuple[int, int]]:
    """Offsets and values, for the history; their timestamps for those who judge look-ups."""
    found = []
    for record in records:
        world.times[log.number, record.offset] = record.timestamp
        found.append((record.offset, value_of(record.value)))
    return found


def bounds_at_leader(thread: ChurnThread, log: Log) -> tuple[int, int, int] | None:
    """Leader, start and end as the leader tells them now; None where nobody tells, or another life may have."""
    world = thread.world
    begun = time.monotonic_ns()
    broker = world.leader(log, thread.connections)
    if broker is None:
        return None
    at = (log.life.name, log.index)
    try:
        start = thread.connections.list_offsets(broker, {at: EARLIEST})[at]
        end = thread.connections.list_offsets(broker, {at: LATEST})[at]
    except Unanswered:
        return None
    if start[0] or end[0] or world.topics.only(*at, begun) is not log:
        return None
    return broker, start[1], end[1]


class SessionReader(ChurnThread):
    """One incremental fetch session with one broker, over what it leads, what it led, and what is not there.

    It reads each log to its end, all records in order; where the log begins later than it has come, it goes on there.
    """

    def __init__(self, world: World, broker: int) -> None:
        super().__init__(world, f"session-{broker}")
        self.broker = broker
        self._session, self._epoch = 0, 0
        self._known: dict[Key, int] = {}
        """What the broker was asked for in the session, and from where."""
        self._positions: dict[int, int] = {}
        self._assignments: dict[int, int] = {}
        self._absent: list[Key] = []
        self._refused: dict[int, float] = {}

    def step(self) -> None:
        if self.broker not in self.world.up_since:
            self._restart()
            self.pause(0.1)
            return
        wanted = self._wanted()
        if self.rng.random() < 0.01:
            self.connections.drop(self.broker)  # the answer of a request is lost with it, and so is the session
            self._restart()
        if not wanted:
            self.pause(0.1)
            return
        changed = {key: at for key, (_, at) in wanted.items() if self._known.get(key) != at or self._epoch == 0}
        forgotten = [key for key in self._known if key not in wanted] if self._epoch else []
        request = FetchRequest(
            300,
            1,
            [FetchTopic("", key[0], [FetchPartition(key[1], at, PART_BYTES)]) for key, at in changed.items()],
            1 << 20,
            session_id=self._session,
            session_epoch=self._epoch,
            forgotten=[ForgottenTopic("", topic_id, [index]) for topic_id, index in forgotten],
        )
        begun = time.monotonic_ns()
        try:
            answer = self.connections.fetch(self.broker, BY_ID, request)
        except Unanswered:
            self._restart()
            self.pause(0.1)
            return
        if answer.error_code:
            if ErrorCode(answer.error_code) not in SESSION_ERRORS:
                self.world.fault(f"{self.name}: {ErrorCode(answer.error_code).name}")
            self.world.counts[f"sessions: {ErrorCode(answer.error_code).name}"] += 1
            self._restart()
            return
        if self._epoch:
            self.world.counts["sessions: incremental"] += 1
        self._known = {key: at for key, (_, at) in wanted.items()} if answer.session_id else {}
        self._session, self._epoch = answer.session_id, self._epoch + 1 if answer.session_id else 0
        for topic in answer.topics:
            for part in topic.partitions:
                log, at = wanted.get((topic.topic_id, part.partition), (None, 0))
                self._take(begun, topic.topic_id, log, at, part)
        self.pause(0.02)

    def _restart(self) -> None:
        self._session, self._epoch, self._known = 0, 0, {}

    def _wanted(self) -> dict[Key, tuple[Log | None, int]]:
        """What to ask for, each from where this reader stands."""
        world = self.world
        wanted: dict[Key, tuple[Log | None, int]] = {}
        for log in world.topics.logs():
            key = (log.life.topic_id, log.index)
            if world.leader(log, self.connections) == self.broker or (key in self._known and self.rng.random() < 0.9):
                wanted[key] = (log, self._positions.setdefault(log.number, log.start))
        for life in world.topics.dropped(4):
            for log in life.logs:
                wanted[life.topic_id, log.index] = (log, self._positions.get(log.number, 0))
        if self.rng.random() < 0.05:
            self._absent = [(uuid.UUID(int=self.rng.getrandbits(128)), index) for index in range(3)]
        wanted.update((key, (None, 0)) for key in self._absent)
        return wanted

    def _take(self, begun: int, topic_id: UUID, log: Log | None, at: int, part: FetchedPartition[memoryview]) -> None:
        code = ErrorCode(part.error_code)
        if log is None:
            if code is not ErrorCode.unknown_topic_id:
                self.world.fault(f"{self.name}: topic id {topic_id}, which is none, is answered by {code.name}")
            self.world.counts["sessions: absent"] += 1
            return
        if code is ErrorCode.offset_out_of_range:
            self._go_on_from_start(log, at)
            return
        if code is not ErrorCode.none:
            self.world.judge_code(code, f"{self.name}: {log}")
            return
        self._refused.pop(log.number, None)
        if part.records:
            records = note_records(self.world, log, decode_batches(part.records, from_offset=at))
            if records:
                assignment = self._assignments.setdefault(log.number, 0)
                self.world.topics.read(self.name, begun, log, assignment, records, final=False)
                self._positions[log.number] = records[-1][0] + 1
                self.world.counts["sessions: records"] += len(records)

    def _go_on_from_start(self, log: Log, at: int) -> None:
        """Out of range; within the log's bounds, for long, that is a fault."""
        self.world.counts["sessions: out of range"] += 1
        bounds = bounds_at_leader(self, log)
        if bounds is None or bounds[0] != self.broker:
            return
        _, start, end = bounds
        if start <= at <= end:
            since = self._refused.setdefault(log.number, time.monotonic())
            if time.monotonic() - since > REFUSED_S:
                self.world.fault(
                    f"{self.name}: {log} refuses offset {at} as out of range, its bounds are {start}, {end}"
                )
            return
        self._refused.pop(log.number, None)
        self._positions[log.number] = start
        self._assignments[log.number] = self._assignments.get(log.number, 0) + 1


class RandomFetcher(ChurnThread):
    """Fetches at random offsets, without a session: by id or by name, near or far, as consumers do that seek."""

    def begin(self) -> None:
        self._assignment = 0

    def step(self) -> None:
        self.pause(0.02)
        logs = self.world.topics.busy()
        if not logs:
            return
        log = self.rng.choice(logs)
        at = self.rng.randint(log.start, log.end)
        rack = self.rng.choice(["", "rack-0", "rack-1", "rack-2"])
        if self._fetch(log, at, rack) is ErrorCode.offset_out_of_range:
            self._insist(log, at, rack)

    def _insist(self, log: Log, at: int, rack: str) -> None:
        """Ask until it is answered, or lies outside of the log's bounds: as a consumer, by its leader each time."""
        deadline = time.monotonic() + REFUSED_S
        while not log.life.dropped and not self.world.stopping.is_set():
            bounds = bounds_at_leader(self, log)
            if bounds is not None:
                _, start, end = bounds
                if not start <= at <= end:
                    self.world.counts["fetches: out of range"] += 1
                    return
                if self._fetch(log, at, rack) is ErrorCode.none:
                    return
                if time.monotonic() > deadline:
                    self.world.fault(
                        f"{self.name}: {log} refuses offset {at} for a consumer in rack {rack!r} for {REFUSED_S} s, "
                        f"its bounds are {start}, {end}"
                    )
                    return
            elif time.monotonic() > deadline:
                return
            self.pause(0.1)

    def _fetch(self, log: Log, at: int, rack: str) -> ErrorCode:
        """Ask the leader, and then whom it names; what came of it."""
        broker = self.world.leader(log, self.connections)
        if broker is None:
            return ErrorCode.leader_not_available
        begun = time.monotonic_ns()
        by_name = self.rng.random() < 0.3
        with contextlib.suppress(Unanswered):
            part = self._ask(broker, log, at, rack, by_name=by_name)
            if part.preferred_read_replica >= 0:
                self.world.counts["fetches: sent to a near replica"] += 1
                if part.preferred_read_replica not in self.world.up_since:
                    return ErrorCode.broker_not_available
                begun = time.monotonic_ns()
                part = self._ask(part.preferred_read_replica, log, at, rack, by_name=by_name)
            code = ErrorCode(part.error_code)
            if code is ErrorCode.none:
                if not by_name or self.world.topics.only(log.life.name, log.index, begun) is log:
                    self._take(begun, log, at, part)
            elif code is not ErrorCode.offset_out_of_range:
                self.world.judge_code(code, f"{self.name}: {log}")
            return code
        return ErrorCode.broker_not_available

    def _ask(self, broker: int, log: Log, at: int, rack: str, *, by_name: bool) -> FetchedPartition[memoryview]:
        part = FetchPartition(log.index, at, PART_BYTES)
        topic = FetchTopic(log.life.name, ZERO_UUID, [part]) if by_name else FetchTopic("", log.life.topic_id, [part])
        request = FetchRequest(0, 1, [topic], PART_BYTES, rack_id=rack)
        answer = self.connections.fetch(broker, BY_NAME if by_name else BY_ID, request)
        [found] = answer.topics[0].partitions
        return found

    def _take(self, begun: int, log: Log, at: int, part: FetchedPartition[memoryview]) -> None:
        if not part.records:
            if at < part.high_watermark:
                self.world.fault(
                    f"{self.name}: {log} has nothing at {at}, below its high watermark {part.high_watermark}"
                )
            return
        records = note_records(self.world, log, decode_batches(part.records, from_offset=at))
        if not records or records[0][0] != at:
            self.world.fault(f"{self.name}: {log}, asked at {at}, answers from {records[0][0] if records else None}")
        self._assignment += 1
        self.world.topics.read(self.name, begun, log, self._assignment, records, final=False)
        self.world.counts["fetches: answered"] += 1
