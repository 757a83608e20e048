"""Settings of a broker: the cluster it belongs to, what topics get by default, and when leaders move."""

from __future__ import annotations

from raylog.protocol.settings import Scope, Setting, ValueType, at_least, between

ZOOKEEPER_CONNECT = Setting(
    "zookeeper.connect",
    ValueType.STRING,
    "",
    Scope.STATIC,
    "ZooKeeper's address: host:port,host:port/chroot.",
)
ZOOKEEPER_SESSION_TIMEOUT_MS = Setting(
    "zookeeper.session.timeout.ms",
    ValueType.INT,
    6_000,
    Scope.STATIC,
    "A broker not heard of for this long is taken for dead.",
    unit="ms",
    check=at_least(1_000),
)
NUM_PARTITIONS = Setting(
    "num.partitions",
    ValueType.INT,
    1,
    Scope.CLUSTER,
    "Partitions of a topic made without a number.",
    check=at_least(1),
)
DEFAULT_REPLICATION_FACTOR = Setting(
    "default.replication.factor",
    ValueType.INT,
    1,
    Scope.CLUSTER,
    "Replicas of a topic made without a number.",
    check=at_least(1),
)
AUTO_CREATE_TOPICS_ENABLE = Setting(
    "auto.create.topics.enable",
    ValueType.BOOLEAN,
    True,
    Scope.CLUSTER,
    "Whether asking for an unknown topic's metadata creates it, where the client allows.",
)
AUTO_LEADER_REBALANCE_ENABLE = Setting(
    "auto.leader.rebalance.enable",
    ValueType.BOOLEAN,
    True,
    Scope.STATIC,
    "Whether the controller gives leadership back to preferred replicas (the first of a partition's) by itself.",
)
LEADER_IMBALANCE_PER_BROKER_PERCENTAGE = Setting(
    "leader.imbalance.per.broker.percentage",
    ValueType.INT,
    10,
    Scope.STATIC,
    "How much of what a broker should lead others may lead before it is given back.",
    unit="%",
    check=between(0, 100),
)
LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS = Setting(
    "leader.imbalance.check.interval.seconds",
    ValueType.LONG,
    300,
    Scope.STATIC,
    "Time between two looks at who leads what.",
    unit="s",
    check=at_least(1),
)
LIVENESS_HINTS = Setting(
    "raylog.liveness.hints",
    ValueType.BOOLEAN,
    True,
    Scope.STATIC,
    "Whether brokers watch each other over idle connections, to notice a death before its ZooKeeper session ends.",
)
