"""One member of a group that puts what it reads into a store of its own, dies on the way, or reads to the end.

``python group_reader_process.py ORDERS`` (JSON, see :class:`Orders`). It dies by SIGKILL at the worst moment of its
delivery semantics: between the result and the commit, or the commit and the result.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from raylog.client import Consumer, ConsumerRecord
from raylog.protocol.ids import TopicPartition

AT_MOST_ONCE = "at most once"
AT_LEAST_ONCE = "at least once"
EXACTLY_ONCE = "exactly once"


@dataclass(frozen=True, slots=True)
class Orders:
    """What the process is told."""

    servers: str
    topic: str
    group: str
    semantics: str
    store: str
    """The path of its database."""
    ends: int
    """Every partition's end offset, where it ends."""
    batch: int
    """Records a poll."""
    dies_after: int
    """So many polls; 0: never."""

    def argument(self) -> str:
        return json.dumps(asdict(self))


class Results:
    """The user's own store: what was read, and up to where."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("create table if not exists seen (value integer)")
        self._database.execute("create table if not exists progress (part integer primary key, next_offset integer)")

    def save(self, polled: Mapping[TopicPartition, list[ConsumerRecord]]) -> None:
        """Results and offsets at once, or nothing of them."""
        self._database.execute("begin")
        self.add(polled)
        for tp, records in polled.items():
            self._database.execute("replace into progress values (?, ?)", (tp.partition, records[-1].offset + 1))

    def add(self, polled: Mapping[TopicPartition, list[ConsumerRecord]]) -> None:
        values = [(int(record.value),) for records in polled.values() for record in records]
        self._database.executemany("insert into seen values (?)", values)

    def end(self) -> None:
        self._database.execute("commit")

    def offset_of(self, partition: int) -> int:
        found = self._database.execute("select next_offset from progress where part = ?", (partition,)).fetchone()
        return found[0] if found else 0

    def seen(self) -> list[int]:
        """All values, in order."""
        return [value for (value,) in self._database.execute("select value from seen order by value")]

    def close(self) -> None:
        self._database.close()


class _Reader:
    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._results = Results(orders.store)
        self._polls = 0
        self._consumer = Consumer(
            orders.servers,
            orders.topic,
            group_id=orders.group,
            listener=self,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=3_000,
        )

    def run(self) -> None:
        with self._consumer as consumer:
            while not self._is_at_the_end():
                polled = consumer.poll(100, max_records=self._orders.batch)
                if polled:
                    self._polls += 1
                    self._take(polled)

    def _take(self, polled: Mapping[TopicPartition, list[ConsumerRecord]]) -> None:
        if self._orders.semantics == EXACTLY_ONCE:
            self._results.save(polled)
            self._die_here()
            self._results.end()
        elif self._orders.semantics == AT_LEAST_ONCE:
            self._results.add(polled)
            self._die_here()
            self._consumer.commit()
        else:
            self._consumer.commit()
            self._die_here()
            self._results.add(polled)

    def _die_here(self) -> None:
        if self._polls == self._orders.dies_after:
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_at_the_end(self) -> bool:
        mine = self._consumer.assignment()
        return len(mine) == 2 and all(self._consumer.position(*tp) == self._orders.ends for tp in mine)

    def on_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        if self._orders.semantics == EXACTLY_ONCE:
            for topic, partition in partitions:
                self._consumer.seek(topic, partition, self._results.offset_of(partition))

    def on_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """All that was polled is in the store."""

    def on_lost(self, partitions: Iterable[TopicPartition]) -> None:
        """So it is here."""


COMMAND = (sys.executable, str(Path(__file__)))

if __name__ == "__main__":
    _Reader(Orders(**json.loads(sys.argv[1]))).run()
