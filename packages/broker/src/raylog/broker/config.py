"""Every broker and topic setting that this broker honours, in Kafka's own names; each is declared once, here.

Read with ``settings[SEGMENT_BYTES]``. A topic's setting falls back to its broker synonym (``broker_default``),
as in Kafka: make a topic's settings with :func:`topic_settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raylog.protocol.settings import Scope, Setting, Settings, SettingsTable, ValueType, at_least, one_of

FOREVER = 2**63 - 1
"""Kafka's way to say «never» or «no limit» in a long."""

_DAY_MS = 24 * 60 * 60 * 1000


def _only_delete(policies: tuple[str, ...]) -> str | None:
    return None if policies == ("delete",) else "must be delete: log compaction is not built yet"


def _only_producer(codec: str) -> str | None:
    if codec == "producer":
        return None
    return "is not available: brokers keep the producer's compression; use producer and set it at the producer"


def _most(name: str, doc: str) -> Setting[int]:
    return Setting(name, ValueType.INT, 2**31 - 1, Scope.CLUSTER, doc, check=at_least(0))


# --- broker: identity and network -----------------------------------------------------------------

BROKER_ID = Setting(
    "broker.id",
    ValueType.INT,
    -1,
    Scope.STATIC,
    "This broker's number, unique in the cluster.",
    check=at_least(0),
)
BROKER_RACK = Setting(
    "broker.rack",
    ValueType.STRING,
    "",
    Scope.STATIC,
    "Where the broker runs; replicas of a partition never share a rack.",
)
LISTENERS: Setting[tuple[str, ...]] = Setting(
    "listeners",
    ValueType.LIST,
    ("PLAINTEXT://127.0.0.1:0",),
    Scope.STATIC,
    "Addresses to listen on, NAME://host:port each; port 0 is chosen once and kept.",
)
ADVERTISED_LISTENERS: Setting[tuple[str, ...]] = Setting(
    "advertised.listeners",
    ValueType.LIST,
    (),
    Scope.STATIC,
    "Addresses that clients are told, NAME://host:port each; a listener not named here: where it listens.",
)
SOCKET_REQUEST_MAX_BYTES = Setting(
    "socket.request.max.bytes",
    ValueType.INT,
    100 * 1024 * 1024,
    Scope.STATIC,
    "The largest request; a longer frame closes the connection.",
    unit="bytes",
    check=at_least(1),
)
QUEUED_MAX_REQUEST_BYTES = Setting(
    "queued.max.request.bytes",
    ValueType.LONG,
    1024**3,
    Scope.CLUSTER,
    "Memory for requests above 256 KB while they come in; a client that gets none in 5 s is cut off; -1: no limit.",
    unit="bytes",
    check=at_least(-1),
)
MAX_CONNECTIONS = _most("max.connections", "Connections held at once; more are closed at accept.")
MAX_CONNECTIONS_PER_IP = _most("max.connections.per.ip", "The same, for those from one address.")
CONNECTIONS_MAX_IDLE_MS = Setting(
    "connections.max.idle.ms",
    ValueType.LONG,
    10 * 60 * 1000,
    Scope.STATIC,
    "A connection without requests is closed after this time.",
    unit="ms",
    check=at_least(1),
)
FETCH_MAX_BYTES = Setting(
    "fetch.max.bytes",
    ValueType.INT,
    55 * 1024 * 1024,
    Scope.STATIC,
    "The most bytes in one fetch response; a first batch that is larger is still sent.",
    unit="bytes",
    check=at_least(1024),
)
MAX_FETCH_SESSIONS = Setting(
    "max.incremental.fetch.session.cache.slots",
    ValueType.INT,
    1000,
    Scope.STATIC,
    "Fetch sessions remembered at once; clients without one send full fetches.",
    check=at_least(0),
)

# --- broker: cluster ------------------------------------------------------------------------------

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

# --- broker: log ----------------------------------------------------------------------------------

LOG_DIRS: Setting[tuple[str, ...]] = Setting(
    "log.dirs",
    ValueType.LIST,
    (),
    Scope.STATIC,
    "Directories for partitions; a new partition goes to the emptiest.",
)
LOG_SEGMENT_BYTES = Setting(
    "log.segment.bytes",
    ValueType.INT,
    1024**3,
    Scope.CLUSTER,
    "A segment that would grow beyond this is closed and a new one begun.",
    unit="bytes",
    check=at_least(14),
)
LOG_ROLL_MS = Setting(
    "log.roll.ms",
    ValueType.LONG,
    7 * _DAY_MS,
    Scope.CLUSTER,
    "A segment whose first record is older than this is closed at the next append.",
    unit="ms",
    check=at_least(1),
)
LOG_INDEX_SIZE_MAX_BYTES = Setting(
    "log.index.size.max.bytes",
    ValueType.INT,
    10 * 1024**2,
    Scope.CLUSTER,
    "A segment whose offset or time index reaches this is closed.",
    unit="bytes",
    check=at_least(12),
)
LOG_INDEX_INTERVAL_BYTES = Setting(
    "log.index.interval.bytes",
    ValueType.INT,
    4096,
    Scope.CLUSTER,
    "Bytes of log between two index entries.",
    unit="bytes",
    check=at_least(0),
)
LOG_CLEANUP_POLICY: Setting[tuple[str, ...]] = Setting(
    "log.cleanup.policy",
    ValueType.LIST,
    ("delete",),
    Scope.CLUSTER,
    "What happens to old segments: delete.",
    check=_only_delete,
)
LOG_RETENTION_MS = Setting(
    "log.retention.ms",
    ValueType.LONG,
    7 * _DAY_MS,
    Scope.CLUSTER,
    "A segment whose newest record is older than this is deleted; -1: never.",
    unit="ms",
    check=at_least(-1),
)
LOG_RETENTION_BYTES = Setting(
    "log.retention.bytes",
    ValueType.LONG,
    -1,
    Scope.CLUSTER,
    "Oldest segments are deleted while a partition keeps at least this much without them; -1: no limit.",
    unit="bytes",
    check=at_least(-1),
)
LOG_RETENTION_CHECK_INTERVAL_MS = Setting(
    "log.retention.check.interval.ms",
    ValueType.LONG,
    5 * 60 * 1000,
    Scope.STATIC,
    "Time between two looks for segments to delete.",
    unit="ms",
    check=at_least(1),
)
LOG_FLUSH_INTERVAL_MESSAGES = Setting(
    "log.flush.interval.messages",
    ValueType.LONG,
    FOREVER,
    Scope.CLUSTER,
    "Records that may be unflushed; 1: each append is on the disk before it is acknowledged.",
    check=at_least(1),
)
LOG_FLUSH_INTERVAL_MS = Setting(
    "log.flush.interval.ms",
    ValueType.LONG,
    FOREVER,
    Scope.CLUSTER,
    "The longest that a record stays unflushed; the default leaves it to the operating system.",
    unit="ms",
    check=at_least(0),
)
LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS = Setting(
    "log.flush.offset.checkpoint.interval.ms",
    ValueType.INT,
    60_000,
    Scope.STATIC,
    "Time between two writes of the checkpoint files (recovery points, log starts, high watermarks).",
    unit="ms",
    check=at_least(0),
)
MESSAGE_MAX_BYTES = Setting(
    "message.max.bytes",
    ValueType.INT,
    1024**2 + 12,
    Scope.CLUSTER,
    "The largest record batch.",
    unit="bytes",
    check=at_least(0),
)
LOG_MESSAGE_TIMESTAMP_TYPE = Setting(
    "log.message.timestamp.type",
    ValueType.STRING,
    "CreateTime",
    Scope.CLUSTER,
    "Whether records keep the producer's time (CreateTime) or get the broker's (LogAppendTime).",
    check=one_of("CreateTime", "LogAppendTime"),
)
LOG_MESSAGE_TIMESTAMP_AFTER_MAX_MS = Setting(
    "log.message.timestamp.after.max.ms",
    ValueType.LONG,
    60 * 60 * 1000,
    Scope.CLUSTER,
    "How far ahead of the broker's clock a record's CreateTime may be.",
    unit="ms",
    check=at_least(0),
)
COMPRESSION_TYPE_BROKER = Setting(
    "compression.type",
    ValueType.STRING,
    "producer",
    Scope.CLUSTER,
    "The codec of stored batches: the producer's.",
    check=_only_producer,
)
PRODUCER_ID_EXPIRATION_MS = Setting(
    "producer.id.expiration.ms",
    ValueType.INT,
    _DAY_MS,
    Scope.CLUSTER,
    "A producer that was silent this long is forgotten, and so are the sequences that tell its duplicates.",
    unit="ms",
    check=at_least(1),
)

BROKER_SETTINGS = SettingsTable(
    (
        BROKER_ID,
        BROKER_RACK,
        LISTENERS,
        ADVERTISED_LISTENERS,
        SOCKET_REQUEST_MAX_BYTES,
        QUEUED_MAX_REQUEST_BYTES,
        MAX_CONNECTIONS,
        MAX_CONNECTIONS_PER_IP,
        CONNECTIONS_MAX_IDLE_MS,
        FETCH_MAX_BYTES,
        MAX_FETCH_SESSIONS,
        ZOOKEEPER_CONNECT,
        ZOOKEEPER_SESSION_TIMEOUT_MS,
        NUM_PARTITIONS,
        DEFAULT_REPLICATION_FACTOR,
        AUTO_CREATE_TOPICS_ENABLE,
        LOG_DIRS,
        LOG_SEGMENT_BYTES,
        LOG_ROLL_MS,
        LOG_INDEX_SIZE_MAX_BYTES,
        LOG_INDEX_INTERVAL_BYTES,
        LOG_CLEANUP_POLICY,
        LOG_RETENTION_MS,
        LOG_RETENTION_BYTES,
        LOG_RETENTION_CHECK_INTERVAL_MS,
        LOG_FLUSH_INTERVAL_MESSAGES,
        LOG_FLUSH_INTERVAL_MS,
        LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS,
        MESSAGE_MAX_BYTES,
        LOG_MESSAGE_TIMESTAMP_TYPE,
        LOG_MESSAGE_TIMESTAMP_AFTER_MAX_MS,
        COMPRESSION_TYPE_BROKER,
        PRODUCER_ID_EXPIRATION_MS,
    )
)

# --- topic ----------------------------------------------------------------------------------------


def _topic(name: str, broker: Setting[Any]) -> Setting[Any]:
    """The topic's row of a broker's setting: same type, default, unit, check and meaning."""
    return Setting(
        name,
        broker.type,
        broker.default,
        Scope.TOPIC,
        broker.doc,
        unit=broker.unit,
        check=broker.check,
        broker_default=broker.name,
    )


CLEANUP_POLICY: Setting[tuple[str, ...]] = _topic("cleanup.policy", LOG_CLEANUP_POLICY)
RETENTION_MS: Setting[int] = _topic("retention.ms", LOG_RETENTION_MS)
RETENTION_BYTES: Setting[int] = _topic("retention.bytes", LOG_RETENTION_BYTES)
SEGMENT_BYTES: Setting[int] = _topic("segment.bytes", LOG_SEGMENT_BYTES)
SEGMENT_MS: Setting[int] = _topic("segment.ms", LOG_ROLL_MS)
SEGMENT_INDEX_BYTES: Setting[int] = _topic("segment.index.bytes", LOG_INDEX_SIZE_MAX_BYTES)
INDEX_INTERVAL_BYTES: Setting[int] = _topic("index.interval.bytes", LOG_INDEX_INTERVAL_BYTES)
MAX_MESSAGE_BYTES: Setting[int] = _topic("max.message.bytes", MESSAGE_MAX_BYTES)
COMPRESSION_TYPE: Setting[str] = _topic("compression.type", COMPRESSION_TYPE_BROKER)
MESSAGE_TIMESTAMP_TYPE: Setting[str] = _topic("message.timestamp.type", LOG_MESSAGE_TIMESTAMP_TYPE)
MESSAGE_TIMESTAMP_AFTER_MAX_MS: Setting[int] = _topic(
    "message.timestamp.after.max.ms", LOG_MESSAGE_TIMESTAMP_AFTER_MAX_MS
)
FLUSH_MESSAGES: Setting[int] = _topic("flush.messages", LOG_FLUSH_INTERVAL_MESSAGES)
FLUSH_MS: Setting[int] = _topic("flush.ms", LOG_FLUSH_INTERVAL_MS)

TOPIC_SETTINGS = SettingsTable(
    (
        CLEANUP_POLICY,
        RETENTION_MS,
        RETENTION_BYTES,
        SEGMENT_BYTES,
        SEGMENT_MS,
        SEGMENT_INDEX_BYTES,
        INDEX_INTERVAL_BYTES,
        MAX_MESSAGE_BYTES,
        COMPRESSION_TYPE,
        MESSAGE_TIMESTAMP_TYPE,
        MESSAGE_TIMESTAMP_AFTER_MAX_MS,
        FLUSH_MESSAGES,
        FLUSH_MS,
    )
)


def topic_settings(broker: Settings, overrides: Mapping[str, str] | None = None) -> Settings:
    """A topic's settings in force: its overrides (texts), else the broker's synonyms, else the defaults.

    Raises InvalidConfig for an unknown name or an unfit value.
    """
    return Settings(TOPIC_SETTINGS, TOPIC_SETTINGS.parse(overrides or {}), parent=broker)
