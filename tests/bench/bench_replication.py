"""What replication costs: three broker processes, one ZooKeeper, and librdkafka as the load, on this machine.

``python tests/bench/bench_replication.py [--rounds N] [--megabytes N] [--idle-seconds N]``; the last line is one JSON
object. Measured in one run:

* bytes per second into three partitions, each on a broker of its own, with one replica and acks=1, and with three
  replicas, min.insync.replicas=2 and acks=all, in batches of 64 KB, in turn; what counts is their ratio;
* the processor time of each broker while 1,000 partitions with three replicas lie idle.

The targets are in ``TARGETS``; the exit code is 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent))

import psutil
from confluent_kafka import Producer

from kit.replicated import ReplicatedCluster
from raylog.client.admin import Admin

BATCH_BYTES = 64 * 1024
RECORD = b"x" * 1024
IDLE_TOPICS, IDLE_PARTITIONS = 10, 100
PARTITIONS = 3

TARGETS: dict[str, Callable[[float], bool]] = {
    "rf3_acks_all_to_rf1_acks_1": lambda value: value >= 0.25,
    "idle_1000_partitions_cpu_of_a_core": lambda value: value <= 0.05,
}


def produce(servers: str, topic: str, acks: str, total: int) -> float:
    """Bytes of values per second, from the first record to the last acknowledgement; none may fail."""
    failures: list[str] = []

    def reported(error: object, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": acks,
            "batch.size": BATCH_BYTES,
            "linger.ms": 5,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 256 * 1024,
            "on_delivery": reported,
        }
    )
    producer.list_topics(topic, 10)
    count = total // len(RECORD)
    begun = time.perf_counter()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, RECORD, partition=number // 64 % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 256 == 0:
            producer.poll(0)
    left = producer.flush(120)
    spent = time.perf_counter() - begun
    assert not left, f"{left} records were not acknowledged"
    assert not failures, f"{len(failures)} records failed: {failures[0]}"
    return count * len(RECORD) / spent


def throughput(cluster: ReplicatedCluster, rounds: int, total: int) -> dict[str, float]:
    """Medians; the ratio is taken round by round."""
    servers = cluster.bootstrap_servers
    rates: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        alone, replicated = f"alone-{number}", f"replicated-{number}"
        with Admin(servers) as admin:
            admin.create_topic(alone, PARTITIONS, replication_factor=1)
        cluster.create_topic(replicated, partitions=PARTITIONS)
        share = total if number else total // 8
        pair = (produce(servers, alone, "1", share), produce(servers, replicated, "all", share))
        with Admin(servers) as admin:
            admin.delete_topics([alone, replicated])
        if number:  # the first round warms up
            rates.append(pair)
            print(f"round {number}: RF 1 {pair[0] / 1e6:.0f} MB/s, RF 3 {pair[1] / 1e6:.0f} MB/s", flush=True)
    return {
        "rf1_acks_1_mb_s": median(one for one, _ in rates) / 1e6,
        "rf3_acks_all_mb_s": median(three for _, three in rates) / 1e6,
        "rf3_acks_all_to_rf1_acks_1": median(three / one for one, three in rates),
    }


def idle(cluster: ReplicatedCluster, seconds: float) -> dict[str, float]:
    """The busiest broker's share of a core with 1,000 idle partitions."""
    for number in range(IDLE_TOPICS):
        cluster.create_topic(f"idle-{number}", partitions=IDLE_PARTITIONS)
    brokers = [
        process
        for process in psutil.Process().children(recursive=True)
        if any(argument.endswith("replica_process.py") for argument in process.cmdline())
    ]
    assert len(brokers) == cluster.size
    time.sleep(5)
    before = [sum(broker.cpu_times()[:2]) for broker in brokers]
    begun = time.perf_counter()
    time.sleep(seconds)
    spent = time.perf_counter() - begun
    shares = [(sum(broker.cpu_times()[:2]) - first) / spent for broker, first in zip(brokers, before, strict=True)]
    print(f"idle: {', '.join(f'{share:.1%}' for share in shares)} of a core", flush=True)
    return {"idle_1000_partitions_cpu_of_a_core": max(shares)}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--megabytes", type=int, default=400)
    options.add_argument("--idle-seconds", type=float, default=20)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="raylog-bench-") as root:
        config = {"replica.lag.time.max.ms": "30000"}
        with ReplicatedCluster(Path(root), config=config, session_ms=6_000) as cluster:
            figures = throughput(cluster, asked.rounds, asked.megabytes * 1_000_000) | idle(cluster, asked.idle_seconds)
    missed = [name for name, target in TARGETS.items() if not target(figures[name])]
    print(json.dumps({name: float(f"{value:.4g}") for name, value in figures.items()} | {"missed": missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
