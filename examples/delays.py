"""A handler that counts each record exactly once: flights and their delays per carrier, summed up in a SQLite database.

The database has the sums and, in the same transaction, the offset up to which they go. Whoever gets a partition asks it
where to read on; so it doesn't matter who dies when, nor whether two believe for a moment that a partition is theirs.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from raylog.client import ConsumerRecord
from raylog.protocol.ids import TopicPartition

BUSY_S = 30.0
"""How long a transaction waits for another member's."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS offsets (topic TEXT, partition INT, next INT, PRIMARY KEY (topic, partition));
CREATE TABLE IF NOT EXISTS delays (carrier TEXT PRIMARY KEY, flights INT, minutes INT);
"""


class Carrier(NamedTuple):
    """What one carrier's flights sum up to."""

    flights: int
    minutes: int
    """Of all arrival delays that are known; early ones count negative."""


class Delays:
    """One member's side of it. A class handler of ``raylog.client.group`` with processing_guarantee="exactly_once"."""

    def __init__(self, path: Path) -> None:
        self._database = _open(path)

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where to read on: behind what is in the sums; what is not in them yet is read from its beginning."""
        return {tp: known for tp in partitions if (known := self._next(tp))}

    def __call__(self, records: list[ConsumerRecord]) -> None:
        """Add the records of one partition that are not in the sums yet."""
        tp = TopicPartition(records[0].topic, records[0].partition)
        with _transaction(self._database):
            known = self._next(tp)
            sums: dict[str, Carrier] = {}
            for record in records:
                if record.offset >= known:
                    flight = json.loads(record.value)
                    flights, minutes = sums.get(flight["carrier"], (0, 0))
                    sums[flight["carrier"]] = Carrier(flights + 1, minutes + (flight["arr_delay"] or 0))
            self._database.executemany(
                "INSERT INTO delays VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET "
                "flights = flights + excluded.flights, minutes = minutes + excluded.minutes",
                [(carrier, *sum_) for carrier, sum_ in sums.items()],
            )
            self._database.execute(
                "INSERT INTO offsets VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET next = max(next, excluded.next)",
                (*tp, records[-1].offset + 1),
            )

    def close(self) -> None:
        self._database.close()

    def _next(self, tp: TopicPartition) -> int:
        """The offset up to which the sums go."""
        row = self._database.execute("SELECT next FROM offsets WHERE topic = ? AND partition = ?", tp).fetchone()
        return row[0] if row else 0


def read_delays(path: Path) -> dict[str, Carrier]:
    """The sums, by the carriers' codes."""
    with closing(_open(path)) as database:
        rows = database.execute("SELECT carrier, flights, minutes FROM delays").fetchall()
    return {carrier: Carrier(flights, minutes) for carrier, flights, minutes in rows}


def _open(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    database.executescript(SCHEMA)
    return database


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing; the lock is taken at once, so that nobody else changes what is read in it."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")
