"""◆ The settings about connections and what is known of the cluster, beside those in :mod:`raylog.client.config`."""

from __future__ import annotations

from raylog.protocol.settings import Scope, Setting, ValueType, at_least

METADATA_MAX_IDLE_MS = Setting(
    "metadata.max.idle.ms",
    ValueType.LONG,
    300_000,
    Scope.CLIENT,
    "A producer forgets a topic that it has not sent to for this time (for delivery.timeout.ms where that is longer).",
    unit="ms",
    check=at_least(5_000),
)
