"""A broker of each kind, with the same settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from kit.cluster import InProcessCluster
from kit.kafka_broker import running_kafka
from kit.waiting import wait_until
from kit.wire import WireClient

__all__ = ["GROUP_MAX_SIZE", "kafka", "raylog"]

GROUP_MAX_SIZE = 6
"""More members than the groups of lives ever have."""
CONFIG = {
    "group.max.size": str(GROUP_MAX_SIZE),
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "auto.create.topics.enable": "false",
    "log.retention.ms": "-1",
    "log.retention.check.interval.ms": "86400000",
}
FEATURES = {"eligible.leader.replicas.version": 0}
"""With it Kafka sets min.insync.replicas for all brokers when a cluster is made: its source is another everywhere."""
Address = tuple[str, int]


ONE_THREAD = {
    "num.network.threads": "1",
    "num.io.threads": "1",
    "group.coordinator.append.linger.ms": "0",
    "log.initial.task.delay.ms": "86400000",
    "broker.session.timeout.ms": "3600000",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
}
"""Of Kafka alone: requests are taken in as they come, nothing is held back to be written with others, nothing is
deleted because of its age, and a broker that a busy machine keeps waiting does not lose its partitions: they would have
other leader epochs."""


@contextmanager
def kafka(root: Path) -> Iterator[Address]:
    with running_kafka(root, {**CONFIG, **ONE_THREAD}, broker_id=0, features=FEATURES) as address:
        with WireClient(address) as client:
            wait_until(lambda: _has_transactions(client), 60.0, "Kafka coordinates transactions")
        yield address


def _has_transactions(client: WireClient) -> bool:
    """It makes the topic for them when the first one is asked for."""
    client.ask(10, 4, key_type=1, coordinator_keys=["warm"])
    asked = {"transactional_id": "warm", "transaction_timeout": timedelta(minutes=1)}
    return not client.ask(22, 4, **asked, producer_id=-1, producer_epoch=-1).error_code.value


@contextmanager
def raylog(root: Path) -> Iterator[Address]:
    with InProcessCluster(root, config=CONFIG) as cluster:
        host, _, port = cluster.bootstrap_servers.rpartition(":")
        yield host, int(port)
