"""Members of consumer groups by clients that others wrote: one process each, to be started, stopped and killed.

with ForeignMember("aiokafka", servers, "t", "g") as member:
    member.wait_owns(6)
    member.leave()
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import confluent_kafka

from kit.kafka_java import JVM, RELEASES, classes, jars
from kit.machine import scaled
from kit.waiting import wait_until

__all__ = ["JAVA", "PYTHON", "ForeignMember", "Traffic", "wait_all_read", "wait_shared"]

PYTHON = ("confluent-kafka", "kafka-python", "aiokafka")
JAVA = tuple(release.name for release in RELEASES)
WAIT_S = 60.0


class ForeignMember:
    """A member, from its start on. What it has said so far stands in its attributes."""

    def __init__(
        self,
        client: str,
        servers: str,
        topic: str,
        group: str,
        *,
        strategy: str = "range",
        instance: str = "-",
        session_ms: int = 3_000,
    ) -> None:
        self.client = client
        self.owned: frozenset[int] | None = None
        """None until it was assigned something for the first time, be it nothing."""
        self.assigned = 0
        """How often it was told what it owns."""
        self.gave: list[int] = []
        """Partitions that it gave up, each time."""
        self.read: list[tuple[int, int]] = []
        """Partition and offset of each record."""
        self.commits = 0
        self.refused: list[str] = []
        """Commits that came too late."""
        self.errors: list[str] = []
        self.has_left = False
        self._command = _command(client, [servers, topic, group, strategy, instance, str(session_ms)])

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        self._process = subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        self._listener = threading.Thread(target=self._listen, name=f"listens to {self.client}")
        self._listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """kill -9. What it had said before is heard, though."""
        with self._process:
            self._process.kill()
            self._listener.join()

    def leave(self) -> None:
        """Have it leave the group in good order, and wait for its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._wait(lambda: self.has_left, "it leaves")
        self._process.wait(scaled(WAIT_S))

    def wait_owns(self, count: int) -> None:
        """Until it owns so many partitions."""
        self._wait(lambda: len(self.owned or ()) == count, f"it owns {count} partitions")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, WAIT_S, what, instead=lambda: self)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            match line.split():
                case ["owns", *partitions]:
                    self.assigned += 1
                    self.owned = frozenset(map(int, partitions))  # last: it is waited for
                case ["gave", *partitions]:
                    given = [int(partition) for partition in partitions]
                    self.gave += given
                    self.owned = (self.owned or frozenset()) - set(given)
                case ["read", partition, offset]:
                    self.read.append((int(partition), int(offset)))
                case ["committed"]:
                    self.commits += 1
                case ["refused", *words]:
                    self.refused.append(" ".join(words))
                case ["left"]:
                    self.has_left = True
                case words:
                    self.errors.append(" ".join(words))

    def __repr__(self) -> str:
        owned = None if self.owned is None else sorted(self.owned)
        return f"<{self.client}: owns {owned}, read {len(self.read)}, {self.commits} commits, {self.errors[-3:]}>"


class Traffic:
    """Writes to all partitions of a topic, in turn, until it is told to stop."""

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 0}
        )
        self._topic = topic
        self._partitions = partitions
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writes to {topic}")
        self.written: set[tuple[int, int]] = set()
        """Partition and offset of each record that was acknowledged."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Write no more; afterwards :attr:`written` is complete."""
        self._ended.set()
        self._thread.join(scaled(WAIT_S))

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(0.02):
            self._producer.produce(
                self._topic, b"%d" % number, partition=number % self._partitions, on_delivery=self._note
            )
            self._producer.poll(0)
            number += 1
        assert self._producer.flush(WAIT_S) == 0

    def _note(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        assert error is None, error
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self.written.add((partition, offset))


def wait_shared(members: Sequence[ForeignMember], partitions: int) -> None:
    """Until each partition is one member's, and each member has its even share."""

    def is_shared() -> bool:
        owned = [partition for member in members for partition in member.owned or ()]
        loads = [len(member.owned or ()) for member in members]
        return sorted(owned) == list(range(partitions)) and max(loads) - min(loads) <= 1

    wait_until(is_shared, WAIT_S, "all partitions are shared out evenly", instead=lambda: list(members))


def wait_all_read(members: Sequence[ForeignMember], traffic: Traffic) -> None:
    """Until each record that was written was read by one of them."""
    traffic.end()
    wait_until(
        lambda: not unread(members, traffic),
        WAIT_S,
        "all that was written is read",
        instead=lambda: f"{list(members)} did not read {sorted(unread(members, traffic))[:9]}",
    )


def unread(members: Iterable[ForeignMember], traffic: Traffic) -> set[tuple[int, int]]:
    """Partition and offset of each record that was written and that none of them has read so far."""
    return traffic.written.difference(*(member.read for member in members))


def _command(client: str, arguments: Iterable[str]) -> list[str]:
    if client in PYTHON:
        return [sys.executable, "-m", "kit.foreign_member", client, *arguments]
    release = next(release for release in RELEASES if release.name == client)
    return [*JVM, f"{classes('Member').name}:{jars(release)}/*", "Member", *arguments]
