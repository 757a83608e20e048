"""What brokers say of themselves, and what the operating system says of them."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from pathlib import Path

from kit.churn.world import World
from kit.machine import scaled_ms
from raylog.client.admin import Admin
from raylog.protocol.errors import RaylogError

__all__ = ["BrokerLogs", "deleted_files", "offline_directories"]

BAD = re.compile(
    r"defect|Traceback|log directory offline|Exception in thread|Exception ignored| CRITICAL | ERROR |records lost|"
    r"log set aside|corrupt batch"
)
EXPECTED = re.compile(
    r"broker cannot register, trying again"  # a killed one is registered until its session ends
    r"|log set aside .* reason=\"the cluster has no such topic\""  # the topic was deleted while the broker was away
)
_STAMP = re.compile(r"\d{4}-\d\d-\d\d ")
_TRACE = re.compile("Traceback|During handling|The above exception")
"""Goes with the line of its event; one that stands alone begins with that of a thread that ended."""


class BrokerLogs:
    """Reads what is new in the logs of all brokers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._read: Counter[int] = Counter()
        self.lines = 0

    def bad(self) -> list[str]:
        """What no broker should say, since the last call, each with what follows it."""
        found = []
        for broker in range(self._world.cluster.size):
            path = self._world.cluster.output(broker)
            with path.open("rb") as file:
                file.seek(self._read[broker])
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read[broker] += len(whole)
            lines = whole.decode(errors="replace").splitlines()
            self.lines += len(lines)
            for number, line in enumerate(lines):
                if BAD.search(line) and not EXPECTED.search(line) and not _TRACE.match(line):
                    rest = itertools.takewhile(lambda after: not _STAMP.match(after), lines[number + 1 :])
                    found.append(f"broker {broker}: " + "\n    ".join((line, *rest)))
        return found


def deleted_files(world: World) -> dict[int, list[str]]:
    """Of each broker the files that it holds open though they are deleted."""
    found = {}
    for broker in world.cluster.running:
        fds = Path(f"/proc/{world.cluster.pid(broker)}/fd")
        links = []
        for fd in fds.iterdir():
            try:
                links.append(os.readlink(fd))
            except FileNotFoundError:
                continue  # closed meanwhile
        found[broker] = sorted(link for link in links if link.endswith(" (deleted)"))
    return found


def offline_directories(world: World) -> list[str]:
    """What DescribeLogDirs tells of directories that cannot be used."""
    found = []
    with Admin(world.cluster.bootstrap_servers, request_timeout_ms=scaled_ms(15_000)) as admin:
        for broker in world.cluster.running:
            try:
                directories = admin.describe_log_dirs(broker)
            except RaylogError as error:
                found.append(f"broker {broker} does not describe its log directories: {error}")
                continue
            found += [f"broker {broker}: {each.path}: {each.error}" for each in directories if each.error]
    return found
