"""The topics of a churn: which life of a name something belongs to, and how it goes into the history.

A topic that is deleted and made anew under its name has logs of its own each time, told apart by the topic's id. The
history knows each log by a number, and each value by the life for which it was sent: ``value * LIVES + life``. So a
record that lies in another life's log than it was sent to is one that nobody sent there.

Who asks by name cannot know which life answers. What was asked by name goes into the history only where exactly one
life can have answered; a send that two can have got is, for each of them, one of which nobody knows what became of it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from kit.history import Recorder, Type

__all__ = ["LIVES", "Life", "Log", "Topics"]

LIVES = 100_000
PADDING = b"." * 280
"""Makes records of some 300 bytes: segments fill."""


@dataclass(slots=True, eq=False)
class Log:
    """One partition of one life."""

    number: int
    """In the history."""
    life: Life
    index: int
    start: int = 0
    end: int = 0
    """Both as the leader told them last, or as records that were read show."""

    def __str__(self) -> str:
        return f"{self.life.name}-{self.index} (log {self.number}, topic id {self.life.topic_id})"


@dataclass(slots=True, eq=False)
class Life:
    """One topic, from its creation to its deletion."""

    number: int
    name: str
    topic_id: UUID
    asked: int
    """When its creation was asked for, monotonic nanoseconds: nothing is its before."""
    retention: dict[str, int] = field(default_factory=dict)
    """As in the history; empty: nothing goes by itself."""
    logs: list[Log] = field(default_factory=list)
    dropped: bool = False
    """Its deletion was asked for."""
    gone: int | None = None
    """When no broker knew it any more under its name: nothing that began later by name is its."""


@dataclass(frozen=True, slots=True)
class _Settled:
    """A send by name whose outcome was told."""

    process: str
    name: str
    index: int
    value: int
    begun: int
    ended: int
    acked: bool
    offset: int


class Topics:
    """All lives of all names. Any thread may call anything."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._lives: list[Life] = []
        self._logs: list[Log] = []
        self._lock = threading.Lock()
        self._under_way: dict[tuple[str, int], tuple[int, str, int]] = {}
        """Producer and value → when a send by name began, and where to."""
        self._renewed: dict[str, list[_Settled]] = {}
        """Names between two lives, and the sends that were settled meanwhile."""
        self._late_deletes: dict[str, list[tuple[int, int]]] = {}
        """Topic → partition and offset of each DeleteRecords that may still come into effect."""

    # --- lives ---

    def begin(self, name: str, topic_id: UUID, partitions: int, asked: int, **retention: int) -> Life:
        """A topic was made, as all brokers know; ``retention`` as in the history."""
        with self._lock:
            for former in self._lives:
                if former.name == name and former.gone is None:
                    former.gone = time.monotonic_ns()
            life = Life(len(self._lives), name, topic_id, asked, retention)
            life.logs = [Log(len(self._logs) + index, life, index) for index in range(partitions)]
            self._lives.append(life)
            self._logs += life.logs
            for log in life.logs:
                self.recorder.add("keeper", asked, "retention", {"partition": log.number, **retention}, {})
            for index, offset in self._late_deletes.pop(name, ()):
                self.recorder.invoke("keeper", "delete", partition=life.logs[index].number, offset=offset)
            for send in self._renewed.pop(name, ()):
                self._note(send)
        return life

    def may_be_deleted(self, log: Log, offset: int) -> None:
        """Nobody knows what became of a DeleteRecords of the log, by name: it may come late, to the next life."""
        with self._lock:
            known = [life for life in self._lives if life.name == log.life.name and life.number > log.life.number]
            for life in known:
                self.recorder.invoke("keeper", "delete", partition=life.logs[log.index].number, offset=offset)
            if not known:
                self._late_deletes.setdefault(log.life.name, []).append((log.index, offset))

    def drop(self, life: Life) -> None:
        """Its deletion is being asked for; what is told by its name cannot be assigned until the next life begins."""
        with self._lock:
            life.dropped = True
            self._renewed[life.name] = []
        for log in life.logs:
            self.recorder.invoke("keeper", "drop", partition=log.number)

    def all(self) -> list[Life]:
        with self._lock:
            return self._lives.copy()

    def current(self) -> list[Life]:
        """Those whose deletion was not asked for."""
        with self._lock:
            return [life for life in self._lives if not life.dropped]

    def dropped(self, most: int) -> list[Life]:
        """The last ``most`` that were dropped."""
        with self._lock:
            return [life for life in self._lives if life.dropped][-most:]

    def logs(self) -> list[Log]:
        """Of those, all."""
        return [log for life in self.current() for log in life.logs]

    def busy(self) -> list[Log]:
        """Those that have records."""
        return [log for log in self.logs() if log.end > log.start]

    def choose(self, rng: random.Random) -> Log:
        """A log, of one topic as often as of another, however many partitions each has."""
        return rng.choice(rng.choice(self.current()).logs)

    def only(self, name: str, index: int, begun: int) -> Log | None:
        """The log that certainly answered what was asked by name; None where two may have."""
        with self._lock:
            if name in self._renewed:
                return None
            lives = self._possible(name, begun, time.monotonic_ns())
        return lives[0].logs[index] if len(lives) == 1 and index < len(lives[0].logs) else None

    def _possible(self, name: str, begun: int, ended: int) -> list[Life]:
        lives = (life for life in self._lives if life.name == name)
        return [life for life in lives if life.asked <= ended and (life.gone is None or life.gone >= begun)]

    # --- sends ---

    def invoke(self, process: str, log: Log, value: int) -> int:
        """A send by topic id begins; its number for the recorder."""
        return self.recorder.invoke(process, "send", partition=log.number, value=value * LIVES + log.life.number)

    def sent_by_name(self, process: str, name: str, index: int, value: int) -> None:
        """A send by name begins."""
        with self._lock:
            self._under_way[process, value] = (time.monotonic_ns(), name, index)

    def settled(self, process: str, value: int, *, acked: bool, offset: int = -1) -> None:
        """It was acknowledged, with an offset or without one, or nobody knows what became of it."""
        ended = time.monotonic_ns()
        with self._lock:
            begun, name, index = self._under_way.pop((process, value))
            send = _Settled(process, name, index, value, begun, ended, acked, offset)
            if name in self._renewed:  # the next life may have got it already, and is not known yet
                self._renewed[name].append(send)
                return
            self._note(send)

    def _note(self, send: _Settled) -> None:
        lives = self._possible(send.name, send.begun, send.ended)
        for life in lives:
            sent = {"partition": life.logs[send.index].number, "value": send.value * LIVES + life.number}
            told = {"offset": send.offset} if send.acked and len(lives) == 1 and send.offset >= 0 else {}
            outcome = Type.OK if send.acked and len(lives) == 1 else Type.INFO
            self.recorder.add(send.process, send.begun, "send", sent, told, outcome, send.ended)

    def settle_all(self) -> None:
        """What is under way still may have been stored."""
        with self._lock:
            left = list(self._under_way)
        for process, value in left:
            self.settled(process, value, acked=False)

    # --- what was told ---

    def read(
        self, process: str, begun: int, log: Log, assignment: int, records: Sequence[tuple[int, int]], *, final: bool
    ) -> None:
        """Offsets and values of a log, read by its topic's id, or where only one life can have answered."""
        log.end = max(log.end, records[-1][0] + 1)
        self.recorder.add(
            process,
            begun,
            "poll",
            {"assignment": assignment, "final": final},
            {"records": [[log.number, offset, value * LIVES + log.life.number] for offset, value in records]},
        )


def payload(value: int) -> bytes:
    return b"%d" % value + PADDING


def value_of(data: bytes | None) -> int:
    assert data is not None
    return int(data.rstrip(b"."))
