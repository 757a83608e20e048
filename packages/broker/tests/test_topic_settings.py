"""The settings of topics as Apache Kafka 4.2.0 tells them, and what gives them their values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kit.node import BROKER, Node
from kit.node_calls import ask
from kit.partitions import append
from raylog.broker.config import BROKER_SETTINGS, RETENTION_MS, SEGMENT_MS, topic_settings
from raylog.protocol.errors import InvalidConfig

FOREVER, DAY_MS = str(2**63 - 1), 86_400_000
BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7
KAFKA: dict[str, tuple[int, str, str]] = {
    "cleanup.policy": (LIST, "delete", "log.cleanup.policy"),
    "compression.gzip.level": (INT, "-1", "compression.gzip.level"),
    "compression.lz4.level": (INT, "9", "compression.lz4.level"),
    "compression.type": (STRING, "producer", "compression.type"),
    "compression.zstd.level": (INT, "3", "compression.zstd.level"),
    "delete.retention.ms": (LONG, str(DAY_MS), "log.cleaner.delete.retention.ms"),
    "file.delete.delay.ms": (LONG, "60000", "log.segment.delete.delay.ms"),
    "flush.messages": (LONG, FOREVER, "log.flush.interval.messages"),
    "flush.ms": (LONG, FOREVER, ""),
    "follower.replication.throttled.replicas": (LIST, "", ""),
    "index.interval.bytes": (INT, "4096", "log.index.interval.bytes"),
    "leader.replication.throttled.replicas": (LIST, "", ""),
    "local.retention.bytes": (LONG, "-2", "log.local.retention.bytes"),
    "local.retention.ms": (LONG, "-2", "log.local.retention.ms"),
    "max.compaction.lag.ms": (LONG, FOREVER, "log.cleaner.max.compaction.lag.ms"),
    "max.message.bytes": (INT, "1048588", "message.max.bytes"),
    "message.timestamp.after.max.ms": (LONG, "3600000", "log.message.timestamp.after.max.ms"),
    "message.timestamp.before.max.ms": (LONG, FOREVER, "log.message.timestamp.before.max.ms"),
    "message.timestamp.type": (STRING, "CreateTime", "log.message.timestamp.type"),
    "min.cleanable.dirty.ratio": (DOUBLE, "0.5", "log.cleaner.min.cleanable.ratio"),
    "min.compaction.lag.ms": (LONG, "0", "log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": (INT, "1", "min.insync.replicas"),
    "preallocate": (BOOLEAN, "false", "log.preallocate"),
    "remote.log.copy.disable": (BOOLEAN, "false", ""),
    "remote.log.delete.on.disable": (BOOLEAN, "false", ""),
    "remote.storage.enable": (BOOLEAN, "false", ""),
    "retention.bytes": (LONG, "-1", "log.retention.bytes"),
    "retention.ms": (LONG, str(7 * DAY_MS), ""),
    "segment.bytes": (INT, "1073741824", "log.segment.bytes"),
    "segment.index.bytes": (INT, "10485760", "log.index.size.max.bytes"),
    "segment.jitter.ms": (LONG, "0", ""),
    "segment.ms": (LONG, str(7 * DAY_MS), ""),
    "unclean.leader.election.enable": (BOOLEAN, "false", "unclean.leader.election.enable"),
}
"""Each setting's type, default, and the broker's setting that gives it, as DescribeConfigs tells them."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as node:
        node.create_topic("t")
        yield node


def described(node: Node, topic: str = "t") -> dict[str, Any]:
    asked = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
    [result] = ask(node, "DescribeConfigs", 4, resources=[asked], include_synonyms=True).results
    return {config.name: config for config in result.configs}


def test_topic_settings_are_those_of_kafka(node: Node) -> None:
    told = {
        config.name: (
            config.config_type,
            config.value,
            [(each.name, each.value, each.source) for each in config.synonyms],
        )
        for config in described(node).values()
    }
    assert told == {
        name: (kind, default, [(synonym, default, 5)] if synonym else [])
        for name, (kind, default, synonym) in KAFKA.items()
    }
    assert {config.config_source for config in described(node).values()} == {5}


def test_create_topics_tells_the_same_settings(node: Node) -> None:
    wanted = {
        "name": "n",
        "num_partitions": 1,
        "replication_factor": 1,
        "configs": [{"name": "flush.ms", "value": "7"}],
    }
    [made] = ask(node, "CreateTopics", 7, topics=[wanted]).topics
    told = {config.name: (config.value, config.config_source) for config in made.configs}
    assert told == {**{name: (default, 5) for name, (_, default, _) in KAFKA.items()}, "flush.ms": ("7", 1)}


@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        ({}, 7 * DAY_MS),
        ({"log.retention.hours": "24"}, DAY_MS),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.hours": "24", "log.retention.minutes": "5"}, 300_000),
        ({"log.retention.minutes": "5", "log.retention.ms": "70"}, 70),
    ],
)
def test_retention_is_told_in_ms_minutes_or_hours(given: dict[str, str], retention_ms: int) -> None:
    assert topic_settings(BROKER_SETTINGS.settings(given))[RETENTION_MS] == retention_ms


@pytest.mark.parametrize("name", ["log.retention.ms", "log.retention.minutes", "log.retention.hours"])
@pytest.mark.parametrize("value", ["0", "-2"])
def test_retention_of_nothing_is_refused_for_a_broker(name: str, value: str) -> None:
    """Kafka doesn't start with it: every topic would lose what it has."""
    with pytest.raises(InvalidConfig, match=f"{name}.*must be -1 or at least 1"):
        BROKER_SETTINGS.settings({name: value})
    for sound in ("-1", "1"):
        BROKER_SETTINGS.settings({name: sound})


def test_retention_of_nothing_is_a_topic_s_right() -> None:
    assert topic_settings(BROKER_SETTINGS.settings({}), {"retention.ms": "0"})[RETENTION_MS] == 0


def test_segments_roll_after_hours() -> None:
    assert topic_settings(BROKER_SETTINGS.settings({"log.roll.hours": "2"}))[SEGMENT_MS] == 7_200_000


def test_hours_are_told_as_the_source_of_a_retention(tmp_path: Path) -> None:
    with Node(tmp_path, config={"log.retention.hours": "24"}) as node:
        node.create_topic("t")
        told = described(node)["retention.ms"]
    assert (told.value, told.config_source) == (str(DAY_MS), 4)
    assert [(each.name, each.value, each.source) for each in told.synonyms] == [
        ("log.retention.hours", "24", 4),
        ("log.retention.hours", "168", 5),
    ]


def test_hours_stand_behind_a_retention_in_ms(tmp_path: Path) -> None:
    with Node(tmp_path, config={"log.retention.ms": "-1"}) as node:
        node.create_topic("t")
        told = described(node)["retention.ms"]
    assert [(each.name, each.value, each.source) for each in told.synonyms] == [
        ("log.retention.ms", "-1", 4),
        ("log.retention.hours", "168", 5),
    ]


@pytest.mark.parametrize(
    ("given", "value", "synonyms"),
    [
        ({}, None, []),
        ({"log.retention.hours": "24"}, None, []),
        ({"log.retention.ms": "-1"}, "-1", [("log.retention.ms", "-1", 4), ("log.retention.hours", "168", 5)]),
    ],
)
def test_unset_settings_of_brokers_are_null(
    tmp_path: Path, given: dict[str, str], value: str | None, synonyms: list[tuple[str, str, int]]
) -> None:
    with Node(tmp_path, config=given) as node:
        asked = {"resource_type": 4, "resource_name": str(BROKER), "configuration_keys": None}
        [result] = ask(node, "DescribeConfigs", 4, resources=[asked], include_synonyms=True).results
    told = {config.name: config for config in result.configs}
    retention = told["log.retention.ms"]
    assert (retention.value, [(each.name, each.value, each.source) for each in retention.synonyms]) == (value, synonyms)
    for name in ("broker.rack", "advertised.listeners", "replica.selector.class", "log.roll.ms"):
        assert (told[name].value, told[name].synonyms, told[name].config_source) == (None, (), 5), name


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("preallocate", "true", ErrorCode.invalid_config),
        ("preallocate", "false", ErrorCode.none),
        ("remote.storage.enable", "true", ErrorCode.invalid_config),
        ("local.retention.ms", "1000", ErrorCode.invalid_config),
        ("file.delete.delay.ms", "1000", ErrorCode.invalid_config),
        ("segment.jitter.ms", "1000", ErrorCode.invalid_config),
        ("message.timestamp.before.max.ms", "1000", ErrorCode.invalid_config),
        ("delete.retention.ms", "1000", ErrorCode.none),
        ("min.cleanable.dirty.ratio", "0.1", ErrorCode.none),
        ("min.cleanable.dirty.ratio", "1.1", ErrorCode.invalid_config),
        ("compression.gzip.level", "0", ErrorCode.invalid_config),
        ("compression.gzip.level", "9", ErrorCode.none),
        ("retention.bytes", "-7", ErrorCode.none),
    ],
)
def test_what_is_not_built_is_refused(node: Node, name: str, value: str, code: ErrorCode) -> None:
    entry = {"name": name, "config_operation": 0, "value": value}
    resource = {"resource_type": 2, "resource_name": "t", "configs": [entry]}
    [result] = ask(node, "IncrementalAlterConfigs", 1, resources=[resource]).responses
    assert (result.error_code, bool(result.error_message)) == (code, code is not ErrorCode.none)


def test_empty_cleanup_policy_keeps_all(node: Node) -> None:
    node.create_topic("t", config={"retention.bytes": "0", "segment.bytes": "150", "cleanup.policy": ""})
    partition = node.partition("t")
    for _ in range(5):
        append(partition, b"v" * 60)
    node.maintain(0)
    node.maintain(DAY_MS)
    assert partition.log_start_offset == 0
    node.create_topic("t", config={"retention.bytes": "0", "segment.bytes": "150"})
    node.maintain(2 * DAY_MS)
    assert partition.log_start_offset > 0
