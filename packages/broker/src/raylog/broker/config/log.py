"""Settings of a broker: its logs, and what topics' logs get by default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raylog.protocol.settings import Scope, Setting, ValueType, at_least, one_of

FOREVER = 2**63 - 1
"""Kafka's way to say «never» or «no limit» in a long."""

_HOUR_MS = 60 * 60 * 1000
_DAY_MS = 24 * _HOUR_MS


def _only_delete(policies: tuple[str, ...]) -> str | None:
    return None if policies in (("delete",), ()) else "must be delete, or empty: log compaction is not built yet"


def _only_producer(codec: str) -> str | None:
    if codec == "producer":
        return None
    return "is not available: brokers keep the producer's compression; use producer and set it at the producer"


def _forever_or_some(value: int | None) -> str | None:
    """Zero is for one topic to say: as a broker's setting it would delete what all hold. Kafka refuses it, too."""
    return None if value is None or value == -1 or value >= 1 else "must be -1 or at least 1"


def topic_row(
    name: str, broker: Setting[Any], unset: Any = None, check: Callable[[Any], str | None] | None = None
) -> Setting[Any]:
    """The topic's row of a broker's setting: same type, unit and meaning.

    ``unset`` is the default where the broker's row has none, ``check`` takes the place of its check.
    """
    return Setting(
        name,
        broker.type,
        unset if broker.default is None else broker.default,
        Scope.TOPIC,
        broker.doc.partition(" Unset: ")[0],
        unit=broker.unit,
        check=check or broker.check,
        broker_default=broker.name,
        coarser=broker.coarser,
    )


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
LOG_ROLL_MS: Setting[int | None] = Setting(
    "log.roll.ms",
    ValueType.LONG,
    None,
    Scope.CLUSTER,
    "A segment whose first record is older than this is closed at the next append. Unset: log.roll.hours.",
    unit="ms",
    check=at_least(1),
    coarser=(("log.roll.hours", _HOUR_MS),),
)
LOG_ROLL_HOURS = Setting(
    "log.roll.hours",
    ValueType.INT,
    7 * 24,
    Scope.STATIC,
    "log.roll.ms in hours, where that is not set.",
    unit="h",
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
    "What happens to old segments: delete; an empty list keeps them for good.",
    check=_only_delete,
)
LOG_RETENTION_MS: Setting[int | None] = Setting(
    "log.retention.ms",
    ValueType.LONG,
    None,
    Scope.CLUSTER,
    "A segment whose newest record is older than this is deleted; -1: never. Unset: log.retention.minutes, or "
    "log.retention.hours.",
    unit="ms",
    check=_forever_or_some,
    coarser=(("log.retention.minutes", 60_000), ("log.retention.hours", _HOUR_MS)),
)
LOG_RETENTION_MINUTES: Setting[int | None] = Setting(
    "log.retention.minutes",
    ValueType.INT,
    None,
    Scope.STATIC,
    "log.retention.ms in minutes, where that is not set.",
    unit="min",
    check=_forever_or_some,
)
LOG_RETENTION_HOURS = Setting(
    "log.retention.hours",
    ValueType.INT,
    7 * 24,
    Scope.STATIC,
    "log.retention.ms in hours, where neither that nor log.retention.minutes is set.",
    unit="h",
    check=_forever_or_some,
)
LOG_RETENTION_BYTES = Setting(
    "log.retention.bytes",
    ValueType.LONG,
    -1,
    Scope.CLUSTER,
    "Oldest segments are deleted while a partition keeps at least this much without them; below 0: no limit.",
    unit="bytes",
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
LOG_FLUSH_INTERVAL_MS: Setting[int | None] = Setting(
    "log.flush.interval.ms",
    ValueType.LONG,
    None,
    Scope.CLUSTER,
    "The longest that a record stays unflushed. Unset: that is left to the operating system.",
    unit="ms",
    check=at_least(0),
)
LOG_SCRUB_BYTES_PER_SECOND = Setting(
    "raylog.log.scrub.bytes.per.second",
    ValueType.LONG,
    16 * 1024**2,
    Scope.CLUSTER,
    "How fast a broker reads in the background what was on its disks at its start, to find and mend what is damaged; "
    "0: not before somebody asks for it.",
    unit="bytes/s",
    check=at_least(0),
)
PRODUCE_CHECK_COMPRESSED = Setting(
    "raylog.produce.check.compressed",
    ValueType.BOOLEAN,
    True,
    Scope.CLUSTER,
    "Whether a broker decompresses what producers send compressed, and refuses what cannot be, as Kafka does: no "
    "consumer could read it. It costs what docs/performance.md says; false trusts the producers.",
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
