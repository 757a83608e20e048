"""Groups of both kinds beside everything else: no record is skipped, and none stays unread.

What a group was handed is known by the records' values, which no two records share. A record that lies in a log in the
end, and that no member was handed, was skipped. How long each acknowledged record waited for the group is counted;
once the cluster rests, everything has to be read within ``UNREAD_S``, scaled.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import confluent_kafka

from kit.churn.topics import LIVES, value_of
from kit.churn.world import ChurnThread, World
from kit.history import Op, Type
from kit.machine import scaled, scaled_ms
from kit.waiting import wait_until
from raylog.client import Consumer
from raylog.protocol.errors import RaylogError

__all__ = ["Actors", "Clients", "ClientsOfOneLife", "Group", "Member", "ages_s", "unread"]

SESSION_MS = scaled_ms(6_000)
POLL_S = 0.2
STAYS_S = (2.0, 12.0)
AWAY_S = 1.0
UNREAD_S = 5.0
LATE_S = 30.0
REJOIN_S = 0.5
MOVE_S = 120.0


class Group:
    """What the members of one group were handed."""

    def __init__(self, name: str, topics: Sequence[str]) -> None:
        self.name = name
        self.topics = topics
        self.handed: dict[int, int] = {}
        """Value → when, monotonic nanoseconds; the first time counts."""
        self.handed_out = 0
        """Those handed out again count again."""

    def hand_out(self, values: Iterable[int]) -> None:
        """By any member's thread."""
        now = time.monotonic_ns()
        for value in values:
            self.handed.setdefault(value, now)
            self.handed_out += 1


class Member(ChurnThread):
    """Reads in a group, leaves it now and then, and comes back; it goes on until :meth:`finish`, at rest too."""

    def __init__(self, world: World, group: Group, number: int) -> None:
        super().__init__(world, f"group {group.name}: {number}")
        self.group = group
        self.stopping = threading.Event()

    def finish(self) -> None:
        self.stopping.set()

    def step(self) -> None:
        stays = self.stays()
        try:
            with contextlib.closing(self.open()) as polls:
                for values in polls:
                    self.group.hand_out(values)
                    if self.stopping.is_set() or not stays():
                        break
        except RaylogError as error:
            self.world.counts[f"{self.name}: {type(error).__name__}"] += 1
            self.pause(REJOIN_S)
            return
        self.world.counts[f"{self.name}: left"] += 1
        if not self.world.stopping.is_set():
            self.pause(self.rng.uniform(0, AWAY_S))

    def stays(self) -> Callable[[], bool]:
        """Whether it stays in the group for longer, from now; for good once the cluster rests."""
        until = time.monotonic() + self.rng.uniform(*STAYS_S)
        return lambda: time.monotonic() < until or self.world.stopping.is_set()

    def open(self) -> Iterator[list[int]]:
        """Join, and yield the values of each poll; when it is closed, commit and leave."""
        raise NotImplementedError


class Actors(Member):
    """A member of a group of actors: it is one partition's only reader by its claim in ZooKeeper."""

    def open(self) -> Iterator[list[int]]:
        with Consumer(
            self.world.cluster.bootstrap_servers,
            list(self.group.topics),
            group_id=self.group.name,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            fetch_max_wait_ms=100,
        ) as consumer:
            while True:
                polled = consumer.poll(POLL_S)
                yield [value_of(record.value) for records in polled.values() for record in records]


class Clients(Member):
    """A member of a group of Kafka's clients: librdkafka's."""

    def open(self) -> Iterator[list[int]]:
        config: Mapping[str, Any] = {
            "bootstrap.servers": self.world.cluster.bootstrap_servers,
            "group.id": self.group.name,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 500,
            "fetch.wait.max.ms": 100,
            "socket.timeout.ms": 10_000,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 2_000,
            "partition.assignment.strategy": "cooperative-sticky" if "cooperative" in self.group.name else "range",
            "log_level": 0,
        }
        consumer = confluent_kafka.Consumer(dict(config))
        try:
            consumer.subscribe(list(self.group.topics))
            while True:
                messages = consumer.consume(500, POLL_S)
                yield [value_of(message.value()) for message in messages if message.error() is None]
        finally:
            consumer.close()


class ClientsOfOneLife(Clients):
    """Leaves before its topic is deleted and comes when it is there anew, as a program that is started again.

    A client of Kafka that stays goes on in the new topic at its own position of the old one, whatever the broker does.
    """

    def __init__(self, world: World, group: Group, number: int) -> None:
        super().__init__(world, group, number)
        self._may_read = threading.Event()
        self._may_read.set()
        self._is_away = threading.Event()

    def leave(self) -> None:
        """Returns when it has left."""
        self._is_away.clear()
        self._may_read.clear()
        wait_until(self._is_away.is_set, MOVE_S, f"{self.name} leaves")

    def come_back(self) -> None:
        self._may_read.set()

    def step(self) -> None:
        while not self._may_read.is_set() and not self.stopping.is_set():
            self._is_away.set()
            self._may_read.wait(POLL_S)
        super().step()

    def stays(self) -> Callable[[], bool]:
        stays = super().stays()
        return lambda: self._may_read.is_set() and stays()


def unread(world: World, groups: Sequence[Group], rest_ns: int) -> list[str]:
    """What is wrong: records of the logs as they are in the end that a group got late, or never.

    ``rest_ns``: since when nothing happens to the cluster, monotonic nanoseconds. Waits for what is late.
    """
    names = {log.number: log.life.name for log in world.topics.logs()}
    there = {
        value // LIVES: (log, offset)
        for op in world.recorder.ops()
        if op.p == "drain" and op.f == "poll" and op.type is Type.OK
        for log, offset, value in op.v["records"]
        if log in names
    }
    found = []
    for group in groups:
        due = [value for value, (log, _) in there.items() if names[log] in group.topics]
        deadline = time.monotonic() + scaled(LATE_S)
        wait_until(
            lambda due=due, group=group, deadline=deadline: (  # type: ignore[misc]
                time.monotonic() > deadline or all(value in group.handed for value in due)
            ),
            2 * LATE_S,
            f"group {group.name} reads to the ends",
        )
        for value in due:
            log, offset = there[value]
            late_s = (group.handed.get(value, time.monotonic_ns()) - rest_ns) / 1e9
            if late_s > scaled(UNREAD_S):
                what = f"late by {late_s:.1f} s" if value in group.handed else "never"
                found.append(f"group {group.name} was handed offset {offset} of log {log}, {names[log]}: {what}")
    return found


def ages_s(group: Group, ops: Iterable[Op]) -> list[float]:
    """How long acknowledged records waited until the group was handed them, ascending."""
    values: dict[int, int] = {}
    acked: dict[int, int] = {}
    for op in ops:
        if op.f == "send" and op.type is Type.INVOKE:
            values[op.id] = op.v["value"] // LIVES
        elif op.f == "send" and op.type is Type.OK:
            acked[values[op.id]] = op.t
    return sorted(max(0, at - acked[value]) / 1e9 for value, at in group.handed.items() if value in acked)
