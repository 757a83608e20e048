"""Kafka's settings of topics that change nothing here: tools expect to be told of them.

Those of compaction and of the brokers' own compression take what Kafka takes: they count only with a cleanup.policy or
a compression.type that is refused. Those of what is not built take their default alone, which says that it is off.
"""

from __future__ import annotations

from typing import Any

from raylog.broker.config.log import FOREVER, topic_row
from raylog.protocol.settings import Scope, Setting, ValueType, at_least, between, only

__all__ = ["BROKER_ROWS", "TOPIC_ROWS"]

_DAY_MS = 24 * 60 * 60 * 1000
_LAG = "Of compaction, which is not built yet: no effect. "
_LEVEL = "Of a compression by brokers, which do not compress: no effect. "
_TIERED = "there is no tiered storage yet"


def _gzip_level(level: int) -> str | None:
    return None if level == -1 or 1 <= level <= 9 else "must be from 1 to 9, or -1"


def _broker(name: str, kind: ValueType, default: Any, doc: str, check: Any, unit: str = "") -> Setting[Any]:
    return Setting(name, kind, default, Scope.CLUSTER, doc, unit=unit, check=check)


def _topic(name: str, kind: ValueType, default: Any, doc: str, check: Any, unit: str = "") -> Setting[Any]:
    return Setting(name, kind, default, Scope.TOPIC, doc, unit=unit, check=check)


_LOG_PREALLOCATE = _broker(
    "log.preallocate",
    ValueType.BOOLEAN,
    False,
    "Whether a segment takes its whole space at its start: it does not.",
    only(False, "segments are not preallocated"),
)
_LOG_SEGMENT_DELETE_DELAY_MS = _broker(
    "log.segment.delete.delay.ms",
    ValueType.LONG,
    60_000,
    "How long Kafka keeps a deleted file for those that still read it. Here it goes once nobody reads it.",
    only(60_000, "a deleted file is kept exactly as long as it is read"),
    "ms",
)
_LOG_LOCAL_RETENTION_MS = _broker(
    "log.local.retention.ms",
    ValueType.LONG,
    -2,
    "What of a tiered log a broker keeps: all that log.retention.ms leaves (-2).",
    only(-2, _TIERED),
    "ms",
)
_LOG_LOCAL_RETENTION_BYTES = _broker(
    "log.local.retention.bytes",
    ValueType.LONG,
    -2,
    "What of a tiered log a broker keeps: all that log.retention.bytes leaves (-2).",
    only(-2, _TIERED),
    "bytes",
)
_LOG_MESSAGE_TIMESTAMP_BEFORE_MAX_MS = _broker(
    "log.message.timestamp.before.max.ms",
    ValueType.LONG,
    FOREVER,
    "How far behind the broker's clock a record's CreateTime may be: as far as it likes.",
    only(FOREVER, "old records are not refused yet"),
    "ms",
)
_COMPRESSION_GZIP_LEVEL = _broker(
    "compression.gzip.level", ValueType.INT, -1, _LEVEL + "From 1 to 9, or -1.", _gzip_level
)
_COMPRESSION_LZ4_LEVEL = _broker("compression.lz4.level", ValueType.INT, 9, _LEVEL + "From 1 to 17.", between(1, 17))
_COMPRESSION_ZSTD_LEVEL = _broker(
    "compression.zstd.level", ValueType.INT, 3, _LEVEL + "From -131072 to 22.", between(-131_072, 22)
)
_LOG_CLEANER_DELETE_RETENTION_MS = _broker(
    "log.cleaner.delete.retention.ms",
    ValueType.LONG,
    _DAY_MS,
    _LAG + "How long the mark of a deleted key stays.",
    at_least(0),
    "ms",
)
_LOG_CLEANER_MIN_COMPACTION_LAG_MS = _broker(
    "log.cleaner.min.compaction.lag.ms",
    ValueType.LONG,
    0,
    _LAG + "How long a record stays at least.",
    at_least(0),
    "ms",
)
_LOG_CLEANER_MAX_COMPACTION_LAG_MS = _broker(
    "log.cleaner.max.compaction.lag.ms",
    ValueType.LONG,
    FOREVER,
    _LAG + "How long a record that another replaced stays at most.",
    at_least(1),
    "ms",
)
_LOG_CLEANER_MIN_CLEANABLE_RATIO = _broker(
    "log.cleaner.min.cleanable.ratio",
    ValueType.DOUBLE,
    0.5,
    _LAG + "The part of a log that has to be new before it is compacted.",
    between(0, 1),
)

BROKER_ROWS = (
    _LOG_PREALLOCATE,
    _LOG_SEGMENT_DELETE_DELAY_MS,
    _LOG_LOCAL_RETENTION_MS,
    _LOG_LOCAL_RETENTION_BYTES,
    _LOG_MESSAGE_TIMESTAMP_BEFORE_MAX_MS,
    _COMPRESSION_GZIP_LEVEL,
    _COMPRESSION_LZ4_LEVEL,
    _COMPRESSION_ZSTD_LEVEL,
    _LOG_CLEANER_DELETE_RETENTION_MS,
    _LOG_CLEANER_MIN_COMPACTION_LAG_MS,
    _LOG_CLEANER_MAX_COMPACTION_LAG_MS,
    _LOG_CLEANER_MIN_CLEANABLE_RATIO,
)

TOPIC_ROWS = (
    topic_row("preallocate", _LOG_PREALLOCATE),
    topic_row("file.delete.delay.ms", _LOG_SEGMENT_DELETE_DELAY_MS),
    topic_row("local.retention.ms", _LOG_LOCAL_RETENTION_MS),
    topic_row("local.retention.bytes", _LOG_LOCAL_RETENTION_BYTES),
    topic_row("message.timestamp.before.max.ms", _LOG_MESSAGE_TIMESTAMP_BEFORE_MAX_MS),
    topic_row("compression.gzip.level", _COMPRESSION_GZIP_LEVEL),
    topic_row("compression.lz4.level", _COMPRESSION_LZ4_LEVEL),
    topic_row("compression.zstd.level", _COMPRESSION_ZSTD_LEVEL),
    topic_row("delete.retention.ms", _LOG_CLEANER_DELETE_RETENTION_MS),
    topic_row("min.compaction.lag.ms", _LOG_CLEANER_MIN_COMPACTION_LAG_MS),
    topic_row("max.compaction.lag.ms", _LOG_CLEANER_MAX_COMPACTION_LAG_MS),
    topic_row("min.cleanable.dirty.ratio", _LOG_CLEANER_MIN_CLEANABLE_RATIO),
    _topic(
        "segment.jitter.ms",
        ValueType.LONG,
        0,
        "How much earlier than segment.ms a segment may be closed, by chance: not at all.",
        only(0, "segments are closed in time"),
        "ms",
    ),
    _topic(
        "remote.storage.enable",
        ValueType.BOOLEAN,
        False,
        "Whether the log is tiered: it is not.",
        only(False, _TIERED),
    ),
    _topic(
        "remote.log.copy.disable",
        ValueType.BOOLEAN,
        False,
        "Of tiered storage.",
        only(False, _TIERED),
    ),
    _topic(
        "remote.log.delete.on.disable",
        ValueType.BOOLEAN,
        False,
        "Of tiered storage.",
        only(False, _TIERED),
    ),
)
