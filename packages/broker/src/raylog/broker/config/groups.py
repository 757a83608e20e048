"""Settings of a broker: consumer groups, their members' sessions, and their offsets."""

from __future__ import annotations

from dataclasses import dataclass

from raylog.protocol.errors import InvalidSessionTimeout
from raylog.protocol.settings import Scope, Setting, ValueType, at_least, between

GROUP_MIN_SESSION_TIMEOUT_MS = Setting(
    "group.min.session.timeout.ms",
    ValueType.INT,
    6_000,
    Scope.STATIC,
    "The least session.timeout.ms that a member of a group may ask for.",
    unit="ms",
    check=at_least(1),
)
GROUP_MAX_SESSION_TIMEOUT_MS = Setting(
    "group.max.session.timeout.ms",
    ValueType.INT,
    30 * 60 * 1000,
    Scope.STATIC,
    "The longest session.timeout.ms that a member of a group may ask for: its death goes unnoticed for so long.",
    unit="ms",
    check=at_least(1),
)
GROUP_INITIAL_REBALANCE_DELAY_MS = Setting(
    "group.initial.rebalance.delay.ms",
    ValueType.INT,
    3_000,
    Scope.STATIC,
    "How long a group that was empty waits for more members before its first assignment; each one that comes prolongs "
    "it, up to the longest rebalance timeout.",
    unit="ms",
    check=at_least(0),
)
GROUP_MAX_SIZE = Setting(
    "group.max.size",
    ValueType.INT,
    2**31 - 1,
    Scope.STATIC,
    "The most members that one group may have.",
    check=at_least(1),
)
OFFSET_METADATA_MAX_BYTES = Setting(
    "offset.metadata.max.bytes",
    ValueType.INT,
    4096,
    Scope.STATIC,
    "The longest text that may be committed beside an offset.",
    unit="bytes",
    check=between(0, 64 * 1024),
)
OFFSETS_RETENTION_MINUTES = Setting(
    "offsets.retention.minutes",
    ValueType.INT,
    7 * 24 * 60,
    Scope.CLUSTER,
    "Committed offsets are forgotten once no member of their group has read the topic, or committed, for this long.",
    unit="min",
    check=at_least(1),
)
OFFSETS_RETENTION_CHECK_INTERVAL_MS = Setting(
    "offsets.retention.check.interval.ms",
    ValueType.LONG,
    10 * 60 * 1000,
    Scope.STATIC,
    "How often a broker looks for committed offsets to forget.",
    unit="ms",
    check=at_least(1),
)
OFFSETS_COMMIT_LINGER_MS = Setting(
    "raylog.offsets.commit.linger.ms",
    ValueType.INT,
    0,
    Scope.CLUSTER,
    "How long a commit of offsets waits for others, to be written to the metadata store with those of its group. "
    "Without waiting, those are written together that come while others are being written: more makes fewer writes, "
    "and every commit slower.",
    unit="ms",
    check=at_least(0),
)


@dataclass(frozen=True, slots=True)
class GroupRules:
    """What the broker's settings say about groups; times in ms."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1

    def check_session_timeout(self, session_timeout_ms: int) -> None:
        """Raises InvalidSessionTimeout."""
        if not self.min_session_timeout_ms <= session_timeout_ms <= self.max_session_timeout_ms:
            raise InvalidSessionTimeout(
                f"session.timeout.ms is {session_timeout_ms}; this cluster allows {self.min_session_timeout_ms} to "
                f"{self.max_session_timeout_ms} (group.min.session.timeout.ms, group.max.session.timeout.ms)"
            )
