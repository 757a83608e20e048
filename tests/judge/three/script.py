"""What is done to three brokers, under a seed.

The script knows from itself where each record lies, since each act is over before the next begins: so the same seed
does the same to any cluster, whichever broker leads at the time.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

__all__ = [
    "BROKERS", "Act", "Elect", "Grow", "Kill", "Make", "Reassign", "Records", "Renew", "Start", "Trim", "Write",
    "script",
]  # fmt: skip

BROKERS = (0, 1, 2)
ACTS = 80
TOPICS = ("a", "b")
PARTITIONS = 2
MOST_PARTITIONS = 4
PRODUCERS = ("p", "q")
CODECS = ("none", "none", "gzip", "snappy", "lz4", "zstd")
Replicas = tuple[int, ...]
Partition = tuple[str, int]


class Make(NamedTuple):
    """A topic with a partition for each of ``assignments``."""

    topic: str
    assignments: tuple[Replicas, ...]


class Grow(NamedTuple):
    """The topic has one partition more, the ``count``-th."""

    topic: str
    count: int
    replicas: Replicas


class Renew(NamedTuple):
    """The producer gets an id, and begins with sequence 0 everywhere."""

    producer: str


class Records(NamedTuple):
    """A batch."""

    sequence: int
    count: int
    codec: str


class Write(NamedTuple):
    """Batches to one partition, sent one behind the other, acks=all. ``again``: sent once more when they are
    acknowledged; ``kills``: the leader is killed when they are sent."""

    producer: str
    topic: str
    partition: int
    batches: tuple[Records, ...]
    again: bool = False
    kills: bool = False


class Elect(NamedTuple):
    """The preferred replica leads, if it can."""

    topic: str
    partition: int


class Reassign(NamedTuple):
    """``waits``: until it is done; else what comes next meets it, but another reassignment finds no replica that is
    being removed."""

    topic: str
    partition: int
    replicas: Replicas
    waits: bool


class Trim(NamedTuple):
    """Delete what is before the offset."""

    topic: str
    partition: int
    offset: int


class Kill(NamedTuple):
    """SIGKILL for the partition's leader."""

    topic: str
    partition: int


class Start(NamedTuple):
    """The broker that was killed comes back."""


Act = Make | Grow | Renew | Write | Elect | Reassign | Trim | Kill | Start


def script(seed: int) -> tuple[Act, ...]:
    """About ACTS acts. In the end all brokers run, and each partition has all of them as replicas."""
    return tuple(_Writer(Random(f"three brokers {seed}")).written())


class _Writer:
    """Writes a script: what it knows is what is so behind the last act."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._acts: list[Act] = []
        self._replicas: dict[Partition, Replicas] = {}
        self._ends: dict[Partition, int] = {}
        self._starts: dict[Partition, int] = {}
        self._sequences: dict[tuple[str, Partition], int] = {}
        self._last: dict[tuple[str, Partition], int] = {}
        """Where a producer's last batch in a partition is."""
        self._turn = 0
        self._is_down = False

    def written(self) -> list[Act]:
        for topic in TOPICS:
            assignments = tuple(self._order() for _ in range(PARTITIONS))
            self._acts.append(Make(topic, assignments))
            for partition, replicas in enumerate(assignments):
                self._has(topic, partition, replicas)
        for producer in PRODUCERS:
            self._renew(producer)
        weights: dict[Callable[[], None], int] = {
            self._write: 24, self._elect: 5, self._reorder: 4, self._shrink: 3, self._restore: 2, self._trim: 5,
            self._grow: 2, self._kill: 6, self._start: 5, lambda: self._renew(self._random.choice(PRODUCERS)): 1,
        }  # fmt: skip
        while len(self._acts) < ACTS:
            [act] = self._random.choices(list(weights), weights=list(weights.values()))
            act()
        self._start()
        self._restore()
        return self._acts

    def _has(self, topic: str, partition: int, replicas: Replicas) -> None:
        self._replicas[topic, partition] = replicas
        self._ends[topic, partition] = self._starts[topic, partition] = 0

    def _order(self) -> Replicas:
        return tuple(self._random.sample(BROKERS, len(BROKERS)))

    def _one(self) -> Partition:
        return self._random.choice(list(self._replicas))

    def _renew(self, producer: str) -> None:
        self._acts.append(Renew(producer))
        for key in [key for key in self._sequences if key[0] == producer]:
            del self._sequences[key], self._last[key]

    def _write(self, *, kills: bool = False) -> None:
        """To each partition in turn."""
        at = list(self._replicas)[self._turn % len(self._replicas)]
        self._turn += 1
        producer = self._random.choice(PRODUCERS)
        batches = []
        for _ in range(self._random.choice([1, 1, 1, 3]) if self._is_known(producer, at) else 1):
            batch = Records(self._sequences.get((producer, at), 0), self._random.randint(1, 4), self._codec())
            self._sequences[producer, at] = batch.sequence + batch.count
            self._last[producer, at] = self._ends[at]
            self._ends[at] += batch.count
            batches.append(batch)
        self._acts.append(Write(producer, *at, tuple(batches), self._random.random() < 0.25, kills))

    def _codec(self) -> str:
        return self._random.choice(CODECS)

    def _is_known(self, producer: str, at: Partition) -> bool:
        """Whether the leader surely knows the producer: of one that is new any first sequence is taken, also that of a
        batch whose predecessor another leader refused."""
        return self._last.get((producer, at), -1) >= self._starts[at]

    def _elect(self) -> None:
        self._acts.append(Elect(*self._one()))

    def _reorder(self) -> None:
        at = self._one()
        replicas = self._replicas[at]
        self._reassign(at, tuple(self._random.sample(replicas, len(replicas))))

    def _shrink(self) -> None:
        """Two must remain, and both run."""
        if not self._is_down:
            self._reassign(self._one(), self._order()[1:])

    def _restore(self) -> None:
        for at, replicas in self._replicas.items():
            if len(replicas) < len(BROKERS):
                self._reassign(at, self._order())

    def _reassign(self, at: Partition, replicas: Replicas) -> None:
        self._replicas[at] = replicas
        self._acts.append(Reassign(*at, replicas, self._random.random() < 0.5))

    def _trim(self) -> None:
        at = self._one()
        self._starts[at] = self._random.randint(self._starts[at], self._ends[at])
        self._acts.append(Trim(*at, self._starts[at]))

    def _grow(self) -> None:
        topic = self._random.choice(TOPICS)
        count = sum(each == topic for each, _ in self._replicas)
        if not self._is_down and count < MOST_PARTITIONS:
            replicas = self._order()
            self._acts.append(Grow(topic, count + 1, replicas))
            self._has(topic, count, replicas)

    def _kill(self) -> None:
        """Where no partition would have less than two replicas."""
        if self._is_down:
            return
        self._restore()
        if self._random.random() < 0.5:
            self._acts.append(Kill(*self._one()))
        else:
            self._write(kills=True)
        self._is_down = True

    def _start(self) -> None:
        if self._is_down:
            self._acts.append(Start())
        self._is_down = False
