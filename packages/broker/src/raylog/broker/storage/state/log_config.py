"""The topic settings that storage reads, looked up once: a plain attribute costs a tenth of a settings look-up."""

from __future__ import annotations

from dataclasses import dataclass

from raylog.broker import config
from raylog.protocol.settings import Settings


@dataclass(frozen=True, slots=True)
class LogConfig:
    """A snapshot of a topic's settings. Names and units are those of the settings."""

    segment_bytes: int
    segment_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    max_message_bytes: int
    log_append_time: bool
    timestamp_after_max_ms: int
    flush_messages: int
    flush_ms: int
    retention_ms: int
    retention_bytes: int

    @classmethod
    def of(cls, settings: Settings) -> LogConfig:
        """The snapshot of ``settings`` (of config.TOPIC_SETTINGS) as they are now."""
        keeps_all = not settings[config.CLEANUP_POLICY]
        return cls(
            segment_bytes=settings[config.SEGMENT_BYTES],
            segment_ms=settings[config.SEGMENT_MS],
            segment_index_bytes=settings[config.SEGMENT_INDEX_BYTES],
            index_interval_bytes=settings[config.INDEX_INTERVAL_BYTES],
            max_message_bytes=settings[config.MAX_MESSAGE_BYTES],
            log_append_time=settings[config.MESSAGE_TIMESTAMP_TYPE] == "LogAppendTime",
            timestamp_after_max_ms=settings[config.MESSAGE_TIMESTAMP_AFTER_MAX_MS],
            flush_messages=settings[config.FLUSH_MESSAGES],
            flush_ms=settings[config.FLUSH_MS],
            retention_ms=-1 if keeps_all else settings[config.RETENTION_MS],
            retention_bytes=-1 if keeps_all else settings[config.RETENTION_BYTES],
        )
