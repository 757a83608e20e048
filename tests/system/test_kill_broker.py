"""kill -9 of a broker's process under a produce load: how long it is away, and what is there afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kit.cli import RunningCluster
from kit.machine import scaled
from kit.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]
PARTITIONS = 3
MAX_GAP_S = 3.0
MAX_STARTS = 2.0
"""Beside other tests, a gap may take so many times what starting a broker's process takes there at that moment."""
TRIES = 6
WAIT_S = 30.0


@dataclass
class Load:
    """A producer that sends numbered values to all partitions and notes what is acknowledged."""

    servers: str
    topic: str
    acked: list[tuple[int, int, bytes, float]] = field(default_factory=list)
    """Partition, offset, value, and when the acknowledgement came."""
    failed: list[KafkaError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": self.servers,
                "enable.idempotence": True,
                "linger.ms": 1,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for partition in range(PARTITIONS):
                self._producer.produce(self.topic, b"%d" % number, partition=partition, on_delivery=self._delivered)
                number += 1
            self._producer.poll(0.001)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert isinstance(value, bytes)
        self.acked.append((partition, offset, value, time.monotonic()))

    def last_ack(self, partition: int) -> float:
        """When the partition's newest acknowledgement came; 0.0 before any."""
        return max((when for p, _, _, when in self.acked.copy() if p == partition), default=0.0)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(WAIT_S)


def read_all(servers: str, topic: str, ends: dict[int, int]) -> dict[tuple[int, int], bytes]:
    """Every record of the topic up to ``ends``, by partition and offset."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
    found: dict[tuple[int, int], bytes] = {}

    def complete() -> bool:
        for message in consumer.consume(10_000, 0.2):
            assert message.error() is None
            found[message.partition(), message.offset()] = message.value()
        return len(found) >= sum(ends.values())

    try:
        wait_until(complete, WAIT_S, "everything is read")
    finally:
        consumer.close()
    return found


def seconds_to_start() -> float:
    """How long this machine takes now for a Python process with what a broker imports."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", "import raylog.broker.launch.actor"], check=True, timeout=scaled(WAIT_S))
    return time.monotonic() - begin


def kill_under_load(cluster: RunningCluster, victim: str, topic: str) -> tuple[float, float]:
    """Kill the controller, or another broker, and check all that was acknowledged.

    Answers the seconds without acknowledgements, and those that starting a process took under the same load.
    """
    status = cluster.status()
    servers = status["bootstrap_servers"]
    admin = AdminClient({"bootstrap.servers": servers})
    config = {"flush.messages": "1"}
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)])[topic].result(scaled(WAIT_S))
    broker = next(b for b in status["brokers"] if b["controller"] == (victim == "controller"))

    def led() -> list[int]:
        leaders = admin.list_topics(topic, timeout=scaled(WAIT_S)).topics[topic].partitions
        return [index for index, state in leaders.items() if state.leader == broker["id"]]

    partition = wait_until(led, WAIT_S, "the broker leads")[0]

    load = Load(servers, topic)
    try:
        wait_until(lambda: load.last_ack(partition) > 0, WAIT_S, "the load runs")
        start_s = seconds_to_start()
        os.kill(broker["pid"], signal.SIGKILL)
        killed = time.monotonic()
        wait_until(lambda: load.last_ack(partition) > killed + 0.1, WAIT_S, "it acknowledges again")
        times = sorted(when for p, _, _, when in load.acked.copy() if p == partition)
        gap = max(after - before for before, after in pairwise(times))
    finally:
        load.stop()

    assert load.failed == []
    ends = {p: 1 + max(offset for q, offset, _, _ in load.acked if q == p) for p in range(PARTITIONS)}
    found = read_all(servers, topic, ends)
    lost = [ack for ack in load.acked if found.get((ack[0], ack[1])) != ack[2]]
    print(
        f"\nkill -9 of a broker ({victim}): {gap:.2f} s to the next acknowledged record, a process starts in "
        f"{start_s:.2f} s; acked {len(load.acked)}, lost {len(lost)}"
    )
    assert lost == []
    for p in range(PARTITIONS):
        values = [int(found[p, offset]) for offset in range(ends[p])]
        assert values == sorted(set(values)), "in order, and none twice"

    def again() -> Any:
        return next(b for b in cluster.status()["brokers"] if b["id"] == broker["id"])

    wait_until(lambda: again()["state"] == "serving", WAIT_S, "it is told to serve", interval_s=0.5, instead=again)
    assert again()["port"] == broker["port"]
    assert again()["pid"] != broker["pid"]
    return gap, start_s


@pytest.mark.parametrize("victim", ["controller", "other"])
def test_a_killed_broker_serves_again_and_has_everything_acknowledged(
    three_brokers: RunningCluster, victim: str, record_property: Any
) -> None:
    """What was acknowledged must be there each time; the time is the machine's too, so the best of some counts."""
    gaps: list[float] = []
    is_fast = False
    while len(gaps) < TRIES and not is_fast:
        gap, start_s = kill_under_load(three_brokers, victim, f"killed-{victim}-{len(gaps)}")
        gaps.append(gap)
        is_fast = gap <= max(MAX_GAP_S, MAX_STARTS * start_s)
    record_property("seconds_to_serve", round(min(gaps), 2))
    assert is_fast, gaps
