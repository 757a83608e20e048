"""A broker of each kind, with the same settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.cluster import InProcessCluster
from kit.kafka_broker import running_kafka

__all__ = ["kafka", "raylog"]

CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "auto.create.topics.enable": "false",
    "log.retention.ms": "-1",
}
FEATURES = {"eligible.leader.replicas.version": 0}
"""With it Kafka sets min.insync.replicas for all brokers when a cluster is made: its source is another everywhere."""
Address = tuple[str, int]


@contextmanager
def kafka(root: Path) -> Iterator[Address]:
    with running_kafka(root, CONFIG, broker_id=0, features=FEATURES) as address:
        yield address


@contextmanager
def raylog(root: Path) -> Iterator[Address]:
    with InProcessCluster(root, config=CONFIG) as cluster:
        host, _, port = cluster.bootstrap_servers.rpartition(":")
        yield host, int(port)
