"""◆ The consumer's settings, in Kafka's names and with Kafka 4's defaults."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raylog.client.config.client import (
    COMMON,
    DEFAULT_API_TIMEOUT_MS,
    STATISTICS_INTERVAL_MS,
    client_setting,
    client_settings,
)
from raylog.coordination.metadata.topic_names import is_topic_name
from raylog.protocol.errors import InvalidConfig
from raylog.protocol.ids import EARLIEST, LATEST
from raylog.protocol.settings import Settings, SettingsTable, ValueType, at_least, one_of

_BY_DURATION = "by_duration:"
_DURATION = re.compile(r"P(?=.)(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)


def _check_reset(text: str) -> str | None:
    if text in _RESETS or (text.startswith(_BY_DURATION) and _DURATION.fullmatch(text.removeprefix(_BY_DURATION))):
        return None
    return "must be earliest, latest, none, or by_duration: and an ISO 8601 duration such as P1DT12H"


_RESETS = {"earliest": EARLIEST, "latest": LATEST, "none": None}
AUTO_OFFSET_RESET = client_setting(
    "auto.offset.reset",
    ValueType.STRING,
    "latest",
    "Where to read when there is no position, or the position is out of range: from the earliest "
    "or the latest offset, or so long ago (by_duration:P1DT12H, KIP-1106), with a warning when a position was lost; or "
    "raise OffsetOutOfRange (none).",
    check=_check_reset,
)
MAX_POLL_RECORDS = client_setting(
    "max.poll.records", ValueType.INT, 500, "The most records that one poll() returns.", check=at_least(1)
)
FETCH_MIN_BYTES = client_setting(
    "fetch.min.bytes",
    ValueType.INT,
    1,
    "A broker answers a fetch once it has this much, or after fetch.max.wait.ms.",
    unit="bytes",
    check=at_least(0),
)
FETCH_MAX_BYTES = client_setting(
    "fetch.max.bytes",
    ValueType.INT,
    52_428_800,
    "The most that one fetch returns; a first batch that is larger comes all the same.",
    unit="bytes",
    check=at_least(0),
)
FETCH_MAX_WAIT_MS = client_setting(
    "fetch.max.wait.ms",
    ValueType.INT,
    500,
    "How long a broker may hold a fetch that has less than fetch.min.bytes.",
    unit="ms",
    check=at_least(0),
)
MAX_PARTITION_FETCH_BYTES = client_setting(
    "max.partition.fetch.bytes",
    ValueType.INT,
    1_048_576,
    "The most that one fetch returns of one partition; a first batch that is larger comes all the same.",
    unit="bytes",
    check=at_least(0),
)
CLIENT_RACK = client_setting(
    "client.rack",
    ValueType.STRING,
    "",
    "Where this consumer runs. Brokers with a broker.rack may let it read from an in-sync replica there (KIP-392).",
)
CHECK_CRCS = client_setting(
    "check.crcs", ValueType.BOOLEAN, True, "Check every batch's checksum before its records are handed out."
)
ALLOW_AUTO_CREATE_TOPICS = client_setting(
    "allow.auto.create.topics",
    ValueType.BOOLEAN,
    False,
    "Whether brokers, where their auto.create.topics.enable says so, create a topic that this consumer is told to read "
    "and that is not there. By default not, as in librdkafka: a misspelled name is an error. Java's default is true. "
    "One that is deleted while it is read is not made anew in either case.",
)
ISOLATION_LEVEL = client_setting(
    "isolation.level",
    ValueType.STRING,
    "read_uncommitted",
    "read_committed: read up to the first transaction that is still open, and leave out what was aborted (KIP-98).",
    check=one_of("read_uncommitted", "read_committed"),
)
GROUP_ID = client_setting(
    "group.id",
    ValueType.STRING,
    "",
    "The consumer group to read in: its members share the partitions and go on where the group stopped. Without it, "
    "the consumer reads the partitions that it is told to, and nobody else is looked at.",
)
GROUP_INSTANCE_ID = client_setting(
    "group.instance.id",
    ValueType.STRING,
    "",
    "A name that this member of the group keeps from life to life (KIP-345): closed or dead, it keeps its partitions "
    "until session.timeout.ms is over, and a new one of this name has them at once, while no other member sees a "
    "change. Of two that run at once, the older one gets FencedInstanceId. Each actor of a group on Ray has its number "
    "added.",
    check=lambda text: (
        None if not text or is_topic_name(text) else "must be at most 249 letters, digits, '.', '_', '-'"
    ),
)
ENABLE_AUTO_COMMIT = client_setting(
    "enable.auto.commit",
    ValueType.BOOLEAN,
    True,
    "In a group: commit what was handed out before, while polling, when a partition is given up, and when closing.",
)
ENABLE_AUTO_OFFSET_STORE = client_setting(
    "enable.auto.offset.store",
    ValueType.BOOLEAN,
    True,
    "In a group: what was handed out is what gets committed. False: what store_offsets names, as in librdkafka.",
)
AUTO_COMMIT_INTERVAL_MS = client_setting(
    "auto.commit.interval.ms",
    ValueType.INT,
    5_000,
    "How often that happens while polling: as much, at most, is read again after a member has died.",
    unit="ms",
    check=at_least(0),
)
MAX_POLL_INTERVAL_MS = client_setting(
    "max.poll.interval.ms",
    ValueType.INT,
    300_000,
    "A member of a group that does not poll for so long is stuck: others get its partitions.",
    unit="ms",
    check=at_least(1),
)
SESSION_TIMEOUT_MS = client_setting(
    "session.timeout.ms",
    ValueType.INT,
    10_000,
    "How long a member of a group that vanished keeps its partitions, where nobody has proof that it died: the timeout "
    "of its ZooKeeper session, which the server may bound. It hands nothing out any more after 0.6 of it.",
    unit="ms",
    check=at_least(1),
)
PARTITION_ASSIGNMENT_STRATEGY = client_setting(
    "partition.assignment.strategy",
    ValueType.STRING,
    "sticky",
    "Who of the group reads what, when this member decides it: balanced with the fewest moves (sticky), or ranges of "
    "each topic's partitions (range). The same for all members.",
    check=one_of("sticky", "range"),
)
ZOOKEEPER_CONNECT = client_setting(
    "zookeeper.connect",
    ValueType.STRING,
    "",
    "host:port,… and a chroot of the cluster's ZooKeeper, for members of groups. By default what a broker says.",
)
ZOOKEEPER_AUTH = client_setting(
    "zookeeper.auth", ValueType.STRING, "", "user:password, where it asks for it.", sensitive=True
)
CONSUMER_SETTINGS = SettingsTable(
    (
        *COMMON,
        DEFAULT_API_TIMEOUT_MS,
        AUTO_OFFSET_RESET,
        MAX_POLL_RECORDS,
        FETCH_MIN_BYTES,
        FETCH_MAX_BYTES,
        FETCH_MAX_WAIT_MS,
        MAX_PARTITION_FETCH_BYTES,
        CHECK_CRCS,
        ALLOW_AUTO_CREATE_TOPICS,
        ISOLATION_LEVEL,
        CLIENT_RACK,
        GROUP_ID,
        GROUP_INSTANCE_ID,
        ENABLE_AUTO_COMMIT,
        ENABLE_AUTO_OFFSET_STORE,
        AUTO_COMMIT_INTERVAL_MS,
        MAX_POLL_INTERVAL_MS,
        SESSION_TIMEOUT_MS,
        PARTITION_ASSIGNMENT_STRATEGY,
        ZOOKEEPER_CONNECT,
        ZOOKEEPER_AUTH,
        STATISTICS_INTERVAL_MS,
    )
)


_OF_GROUPS = (
    GROUP_INSTANCE_ID,
    ENABLE_AUTO_COMMIT,
    ENABLE_AUTO_OFFSET_STORE,
    AUTO_COMMIT_INTERVAL_MS,
    MAX_POLL_INTERVAL_MS,
    SESSION_TIMEOUT_MS,
    PARTITION_ASSIGNMENT_STRATEGY,
    ZOOKEEPER_CONNECT,
    ZOOKEEPER_AUTH,
)


def consumer_settings(bootstrap_servers: str | Sequence[str], config: Mapping[str, Any]) -> Settings:
    """As client_settings. Raises InvalidConfig, too, for what only a group does, without ``group.id``: it would be
    waited for in vain. ``enable.auto.commit=false`` is true without one."""
    settings = client_settings(CONSUMER_SETTINGS, bootstrap_servers, config)
    if settings.is_default(GROUP_ID):
        for row in _OF_GROUPS:
            if not settings.is_default(row) and not (row is ENABLE_AUTO_COMMIT and not settings[ENABLE_AUTO_COMMIT]):
                raise InvalidConfig(f"{row.name} is for a consumer in a group; give group_id, or leave it out")
    return settings


def offset_reset(settings: Settings, now_ms: Callable[[], int]) -> int | Callable[[], int] | None:
    """``auto.offset.reset`` as a Subscription takes it."""
    text = settings[AUTO_OFFSET_RESET]
    if text in _RESETS:
        return _RESETS[text]
    found = _DURATION.fullmatch(text.removeprefix(_BY_DURATION))
    assert found is not None, "checked"
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    ago_ms = int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000)
    return lambda: max(0, now_ms() - ago_ms)


def isolation_level(settings: Settings) -> int:
    """``isolation.level`` as on the wire."""
    return int(settings[ISOLATION_LEVEL] == "read_committed")


_SETTLED = {
    AUTO_OFFSET_RESET.name: "the offsets to read say where it begins",
    GROUP_ID.name: "what is read are the offsets that were asked for, outside of any group",
}


def isolation_level_of(config: Mapping[str, Any]) -> int:
    """That of a consumer of ranges of offsets with these settings, whose addresses come later. Raises as
    consumer_settings, and InvalidConfig for what a range decides."""
    for name in config:
        if why := _SETTLED.get(str(name).replace("_", ".")):
            raise InvalidConfig(f"{name} cannot be set here: {why}")
    return isolation_level(consumer_settings("checked-elsewhere:1", config))
