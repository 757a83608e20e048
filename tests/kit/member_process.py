"""One member of a group in a process of its own, without brokers: the child of :class:`MemberProcess`.

``python -m kit.member_process ZOOKEEPER SESSION_MS`` joins and hands out nothing; it prints a line for whatever it
hears, with the time of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

from kit.group_members import started
from kit.machine import scaled
from raylog.client.groups.changes import Assigned, Revoked
from raylog.coordination.zookeeper.store import ZkStore
from raylog.protocol.ids import MemberId, PartitionIndex, TopicName, TopicPartition

TESTS = Path(__file__).parent.parent


class MemberProcess:
    """Starts one, reads what it says, and kills it at the end of its ``with``."""

    def __init__(self, zookeeper: str, session_ms: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kit.member_process", zookeeper, str(session_ms)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )
        self._lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGCONT)
        self.kill()
        self._process.wait(scaled(30))
        self._reader.join(scaled(30))

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.append(json.loads(line))

    @property
    def member_id(self) -> MemberId | None:
        """None until it has registered."""
        return next((MemberId(line["id"]) for line in self._lines.copy() if "id" in line), None)

    @property
    def began(self) -> dict[TopicPartition, float]:
        """Since when it has what it has, as it says."""
        found: dict[TopicPartition, float] = {}
        for line in self._lines.copy():
            if "change" in line:
                tp = TopicPartition(TopicName(line["topic"]), PartitionIndex(line["partition"]))
                found.pop(tp, None)
                if line["change"] == "Assigned":
                    found[tp] = line["t"]
        return found

    @property
    def may_deliver(self) -> list[tuple[float, int]]:
        """When it asked, and of how many partitions it might hand records out."""
        return [(line["t"], line["may"]) for line in self._lines.copy() if "may" in line]

    def signal(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> float:
        """With kill -9; when that was."""
        now = time.monotonic()
        self.signal(signal.SIGKILL)
        return now


def main(zookeeper: str, session_ms: int) -> None:
    with ZkStore(zookeeper, session_timeout_ms=session_ms) as store:
        member = started(store)
        say(id=member.member_id)
        has: set[TopicPartition] = set()
        while True:
            say(may=sum(map(member.may_deliver, has)))
            member.wait(0.02)
            member.polled()
            for change in member.changes():
                say(change=type(change).__name__, topic=change.tp.topic, partition=change.tp.partition)
                if isinstance(change, Assigned):
                    has.add(change.tp)
                else:
                    has.discard(change.tp)
                if isinstance(change, Revoked):
                    member.quiet(change.tp, None)


def say(**fields: object) -> None:
    print(json.dumps({"t": time.monotonic(), **fields}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
