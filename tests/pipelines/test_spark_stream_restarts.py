"""A stream whose driver is killed at random points, and a broker with it each time: exact counts at the end.

RAYLOG_RESTARTS=n kills n times; three times at night, else once.
"""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kit.forms import NIGHTLY
from kit.replicated import ReplicatedCluster
from kit.stream_process import BATCH, RESULT, StreamProcess
from kit.waiting import wait_until
from raylog.client import Admin, Producer
from raylog.protocol.ids import LATEST

RESTARTS = int(os.environ.get("RAYLOG_RESTARTS", "3" if NIGHTLY else "1"))
PARTITIONS = 3
KILLED_WITHIN_S = 1.5
"""After the first batch of a run: each batch takes a few tenths of a second."""
WAIT_S = 120.0

pytestmark = [pytest.mark.system, pytest.mark.timeout(240 + 60 * RESTARTS)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path_factory.mktemp("brokers")) as running:
        yield running


class Numbers:
    """What sends 0, 1, 2, … to a new topic as long as it runs, each of them once."""

    def __init__(self, cluster: ReplicatedCluster, topic: str) -> None:
        cluster.create_topic(topic, partitions=PARTITIONS)
        self.count = 0
        self._servers = cluster.bootstrap_servers
        self._topic = topic
        self._ends = threading.Event()

    @contextmanager
    def sending(self) -> Iterator[None]:
        """All of them are acknowledged at the end."""
        with ThreadPoolExecutor(1) as thread:
            sent = thread.submit(self._send)
            try:
                yield
            finally:
                self._ends.set()
            sent.result()

    def _send(self) -> None:
        with Producer(self._servers, linger_ms=5) as producer:
            while not self._ends.wait(0.05):
                sent = [producer.send(self._topic, b"%d" % (self.count + number)) for number in range(20)]
                self.count += len(sent)
                producer.flush()
                for delivery in sent:
                    delivery.result(0)


def wait_moment(chance: random.Random) -> None:
    """Let a random time pass."""
    until = time.monotonic() + chance.uniform(0, KILLED_WITHIN_S)
    wait_until(lambda: time.monotonic() >= until, WAIT_S, "the moment")


def test_restarts_at_random_points_with_a_broker_killed_in_each(cluster: ReplicatedCluster, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    numbers = Numbers(cluster, "restarted")
    where = (tmp_path, cluster.bootstrap_servers, "restarted")
    batches = []
    with numbers.sending():
        for _ in range(RESTARTS):
            victim = chance.randrange(cluster.size)
            with StreamProcess(*where) as driver:
                driver.line(BATCH)
                wait_moment(chance)
                cluster.kill(victim)
                batches.append(int(driver.line(BATCH)))
                wait_moment(chance)
                driver.kill(whole=chance.random() < 0.5)
            cluster.start(victim)
            cluster.wait_serving(victim)
            cluster.wait_in_sync("restarted", PARTITIONS)
    with StreamProcess(*where, "drain") as driver:
        written = json.loads(driver.line(RESULT))
    with Admin(cluster.bootstrap_servers) as admin:
        ends = admin.list_offsets({("restarted", partition): LATEST for partition in range(PARTITIONS)})
    print(f"\n{RESTARTS} restarts (seed {seed}) at batches {batches}: {numbers.count} records sent, {written}")
    assert written == {
        "rows": numbers.count,
        "places": numbers.count,
        "values": numbers.count,
        "sum": sum(range(numbers.count)),
        "ends": {str(tp.partition): end.offset for tp, end in ends.items()},
    }


def test_of_two_drivers_on_one_checkpoint_one_is_refused(cluster: ReplicatedCluster, tmp_path: Path) -> None:
    """Whichever: each of Spark's logs takes a batch once, also the file sink's. What was written is exact."""
    numbers = Numbers(cluster, "contended")
    where = (tmp_path, cluster.bootstrap_servers, "contended")
    with numbers.sending(), ExitStack() as stack:
        drivers = [stack.enter_context(StreamProcess(*where)) for _ in range(2)]
        wait_until(lambda: any(driver.ended() for driver in drivers), WAIT_S, "one is refused")
        [refused] = [driver for driver in drivers if driver.ended()]
        assert re.search(
            "Multiple streaming jobs|Multiple streaming queries|Race while writing batch", refused.errors.read_text()
        )
    with StreamProcess(*where, "drain") as driver:
        written = json.loads(driver.line(RESULT))
    assert (written["rows"], written["values"]) == (numbers.count, numbers.count)
