"""Settings of a broker: how replicas follow, who counts as in sync, and how fast they may catch up."""

from __future__ import annotations

from raylog.broker.config.log import FOREVER
from raylog.protocol.settings import Scope, Setting, ValueType, at_least, one_of

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def _throttled_replicas(items: tuple[str, ...]) -> str | None:
    """Kafka's form: ``*``, or partition:broker pairs."""
    for item in items:
        partition, colon, broker = item.partition(":")
        if item != "*" and not (colon and partition.isdigit() and broker.isdigit()):
            return "must be * or a list of partition:broker"
    return None


def _rate(name: str, doc: str) -> Setting[int]:
    return Setting(name, ValueType.LONG, FOREVER, Scope.CLUSTER, doc, unit="bytes/s", check=at_least(1))


def _throttled(name: str, doc: str) -> Setting[tuple[str, ...]]:
    return Setting(name, ValueType.LIST, (), Scope.TOPIC, doc, check=_throttled_replicas)


MIN_INSYNC_REPLICAS_BROKER = Setting(
    "min.insync.replicas",
    ValueType.INT,
    1,
    Scope.CLUSTER,
    "Replicas that must have a record before acks=all is answered; with fewer in sync such a produce is refused.",
    check=at_least(1),
)
UNCLEAN_LEADER_ELECTION_ENABLE_BROKER = Setting(
    "unclean.leader.election.enable",
    ValueType.BOOLEAN,
    False,
    Scope.CLUSTER,
    "Whether a replica that may lack acknowledged records may lead when no other can: it loses them.",
)
REPLICA_LAG_TIME_MAX_MS = Setting(
    "replica.lag.time.max.ms",
    ValueType.LONG,
    30_000,
    Scope.STATIC,
    "A follower that was not at its leader's end for this long leaves the in-sync replicas.",
    unit="ms",
    check=at_least(1),
)
REPLICA_FETCH_MAX_BYTES = Setting(
    "replica.fetch.max.bytes",
    ValueType.INT,
    1024**2,
    Scope.STATIC,
    "The most bytes of one partition that a follower fetches at once; a first batch that is larger still comes.",
    unit="bytes",
    check=at_least(0),
)
REPLICA_FETCH_RESPONSE_MAX_BYTES = Setting(
    "replica.fetch.response.max.bytes",
    ValueType.INT,
    10 * 1024**2,
    Scope.STATIC,
    "The same, for all partitions of one leader together.",
    unit="bytes",
    check=at_least(0),
)
REPLICA_FETCH_MIN_BYTES = Setting(
    "replica.fetch.min.bytes",
    ValueType.INT,
    1,
    Scope.STATIC,
    "A leader answers a follower once it has this much, or after replica.fetch.wait.max.ms.",
    unit="bytes",
)
REPLICA_FETCH_WAIT_MAX_MS = Setting(
    "replica.fetch.wait.max.ms",
    ValueType.INT,
    100,
    Scope.STATIC,
    "How long a leader lets a follower wait for new records, and so how late it may learn of new partitions to follow "
    "and of the high watermark; keep it below replica.lag.time.max.ms.",
    unit="ms",
)
REPLICA_FETCH_BACKOFF_MS = Setting(
    "replica.fetch.backoff.ms",
    ValueType.INT,
    1_000,
    Scope.STATIC,
    "The pause of one partition, or of a leader that cannot be reached, after a fetch failed.",
    unit="ms",
    check=at_least(0),
)
REPLICA_SOCKET_TIMEOUT_MS = Setting(
    "replica.socket.timeout.ms",
    ValueType.INT,
    30_000,
    Scope.STATIC,
    "How long a follower waits for its leader's answer, beyond replica.fetch.wait.max.ms.",
    unit="ms",
    check=at_least(1),
)
REPLICA_HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS = Setting(
    "replica.high.watermark.checkpoint.interval.ms",
    ValueType.LONG,
    5_000,
    Scope.STATIC,
    "Time between two writes of the high watermarks to the disk.",
    unit="ms",
    check=at_least(1),
)
REPLICA_SELECTOR_CLASS = Setting(
    "replica.selector.class",
    ValueType.STRING,
    "",
    Scope.STATIC,
    f"Whom consumers read from: their leader, or with {RACK_AWARE_SELECTOR} an in-sync replica in their client.rack.",
    check=one_of("", RACK_AWARE_SELECTOR),
)
LEADER_REPLICATION_THROTTLED_RATE = _rate(
    "leader.replication.throttled.rate",
    "How fast this broker sends those partitions to followers that leader.replication.throttled.replicas names.",
)
FOLLOWER_REPLICATION_THROTTLED_RATE = _rate(
    "follower.replication.throttled.rate",
    "How fast this broker fetches those partitions from leaders that follower.replication.throttled.replicas names.",
)

LEADER_REPLICATION_THROTTLED_REPLICAS = _throttled(
    "leader.replication.throttled.replicas",
    "Leaders to throttle, as partition:broker, or * for all: see leader.replication.throttled.rate.",
)
FOLLOWER_REPLICATION_THROTTLED_REPLICAS = _throttled(
    "follower.replication.throttled.replicas",
    "Followers to throttle, as partition:broker, or * for all: see follower.replication.throttled.rate.",
)
