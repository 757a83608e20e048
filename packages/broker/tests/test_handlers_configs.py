"""Settings that change while a broker runs: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, every version."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kit.machine import scaled
from kit.node import BROKER, Node
from kit.node_calls import ask
from kit.topics import stored_configs
from kit.waiting import wait_until
from raylog.broker.cluster.ports import StoredConfigs
from raylog.broker.config import AUTO_CREATE_TOPICS_ENABLE, MAX_CONNECTIONS, NUM_PARTITIONS, SEGMENT_BYTES
from raylog.broker.handlers import TABLE
from raylog.broker.handlers.context import Operation, Resource
from raylog.coordination.membership.registration import ensure_cluster
from raylog.coordination.metadata import paths
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import MAX_WRITE_BYTES
from raylog.protocol.errors import InvalidConfig
from raylog.protocol.ids import TopicName
from raylog.protocol.records import Record, encode_batch

VERSIONS = {row.name: range(row.min_version, row.max_version + 1) for row in TABLE}
TOPIC, SELF, ALL = (2, "t"), (4, str(BROKER)), (4, "")
SET, DELETE, APPEND, SUBTRACT = range(4)
HOUR_MS = 3_600_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, config={"num.partitions": "3"}) as node:
        node.create_topic("t")
        yield node


def resource(which: tuple[int, str], configs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"resource_type": which[0], "resource_name": which[1], "configs": configs}


def replace(node: Node, which: tuple[int, str], version: int = 2, **configs: str | None) -> Any:
    """AlterConfigs for one resource; "_" stands for "."."""
    entries = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
    [result] = ask(node, "AlterConfigs", version, resources=[resource(which, entries)]).responses
    return result


def alter(
    node: Node, which: tuple[int, str], *edits: tuple[int, str, str | None], version: int = 1, **values: Any
) -> Any:
    """IncrementalAlterConfigs for one resource: (operation, name, value) each."""
    entries = [{"name": name, "config_operation": op, "value": value} for op, name, value in edits]
    [result] = ask(node, "IncrementalAlterConfigs", version, resources=[resource(which, entries)], **values).responses
    return result


def describe(node: Node, which: tuple[int, str], *names: str, version: int = 4) -> dict[str, Any]:
    asked = {"resource_type": which[0], "resource_name": which[1], "configuration_keys": list(names) or None}
    [result] = ask(
        node, "DescribeConfigs", version, resources=[asked], include_synonyms=True, include_documentation=True
    ).results
    assert result.error_code is ErrorCode.none, result.error_message
    return {config.name: config for config in result.configs}


def overrides(node: Node) -> dict[str, str]:
    return dict(node.table.state().topics[TopicName("t")].configs)


def synonyms_of(config: Any) -> list[tuple[str, str, int]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms]


# --- what is changed


@pytest.mark.parametrize("version", VERSIONS["AlterConfigs"])
def test_alter_configs_replaces_all_overrides(node: Node, version: int) -> None:
    node.create_topic("t", config={"retention.ms": "1", "flush.ms": "2"})
    result = replace(node, TOPIC, version, flush_ms="3", segment_bytes="100")
    assert (result.error_code, result.resource_type, result.resource_name) == (ErrorCode.none, *TOPIC)
    assert overrides(node) == {"flush.ms": "3", "segment.bytes": "100"}
    assert node.partition("t").settings[SEGMENT_BYTES] == 100


@pytest.mark.parametrize("version", VERSIONS["IncrementalAlterConfigs"])
def test_incremental_alter_configs_changes_what_it_names(node: Node, version: int) -> None:
    node.create_topic("t", config={"retention.ms": "1", "flush.ms": "2"})
    result = alter(
        node, TOPIC, (SET, "segment.bytes", "100"), (DELETE, "flush.ms", None), (DELETE, "x", None), version=version
    )
    assert (result.error_code, result.resource_type, result.resource_name) == (ErrorCode.none, *TOPIC)
    assert overrides(node) == {"retention.ms": "1", "segment.bytes": "100"}
    assert node.partition("t").settings[SEGMENT_BYTES] == 100


def test_items_are_added_to_and_taken_from_lists(node: Node) -> None:
    assert alter(node, TOPIC, (APPEND, "cleanup.policy", "delete")).error_code is ErrorCode.none
    assert overrides(node) == {"cleanup.policy": "delete"}, "it is in the default already"
    added = alter(node, TOPIC, (APPEND, "cleanup.policy", "compact"))
    assert (added.error_code, "compaction is not built" in added.error_message) == (ErrorCode.invalid_config, True)
    assert alter(node, TOPIC, (SUBTRACT, "cleanup.policy", "delete,compact")).error_code is ErrorCode.none
    assert overrides(node) == {"cleanup.policy": ""}
    throttled = "leader.replication.throttled.replicas"
    for op, value, left in [
        (APPEND, "0:1,1:1", "0:1,1:1"),
        (APPEND, "1:1,2:1", "0:1,1:1,2:1"),
        (SUBTRACT, "1:1", "0:1,2:1"),
    ]:
        assert alter(node, TOPIC, (op, throttled, value)).error_code is ErrorCode.none
        assert overrides(node)[throttled] == left
    for op in (APPEND, SUBTRACT):
        assert alter(node, TOPIC, (op, "retention.ms", "1")).error_code is ErrorCode.invalid_config
        assert alter(node, SELF, (op, "nonsense", "1")).error_code is ErrorCode.invalid_request


def test_validation_alone_changes_nothing(node: Node) -> None:
    assert alter(node, TOPIC, (SET, "flush.ms", "1"), validate_only=True).error_code is ErrorCode.none
    assert alter(node, TOPIC, (SET, "flush.ms", "x"), validate_only=True).error_code is ErrorCode.invalid_config
    assert alter(node, ALL, (SET, "num.partitions", "1"), validate_only=True).error_code is ErrorCode.none
    assert overrides(node) == {}
    assert node.broker_configs == {}


# --- what is refused


@pytest.mark.parametrize("which", [TOPIC, SELF, ALL])
def test_settings_that_no_node_can_hold_are_refused(node: Node, which: tuple[int, str]) -> None:
    """ZooKeeper would close the controller's connection, and the client try again."""
    name = "leader.replication.throttled.replicas" if which == TOPIC else "log.retention.ms"
    result = alter(node, which, (SET, name, "," * 600_000 if which == TOPIC else "1" + " " * 600_000))
    assert result.error_code is (ErrorCode.invalid_config if which == TOPIC else ErrorCode.invalid_request)
    assert "bytes" in result.error_message


@pytest.mark.parametrize("which", [TOPIC, SELF, ALL])
def test_settings_are_bounded_together_and_can_be_taken_back(node: Node, which: tuple[int, str]) -> None:
    """Each alone would fit in, with one request or with one after another."""
    one, two = ("flush.ms", "retention.ms") if which == TOPIC else ("log.retention.ms", "num.partitions")
    long, refused = "1" + " " * 300_000, ErrorCode.invalid_config if which == TOPIC else ErrorCode.invalid_request
    assert alter(node, which, (SET, one, long), (SET, two, long)).error_code is refused
    assert alter(node, which, (SET, one, long)).error_code is ErrorCode.none
    assert alter(node, which, (SET, two, long)).error_code is refused
    assert alter(node, which, (DELETE, one, None)).error_code is ErrorCode.none
    assert alter(node, which, (SET, two, long)).error_code is ErrorCode.none


def test_error_about_long_names_is_answered_in_old_versions(node: Node) -> None:
    name = "x" * 32_760
    result = replace(node, (2, name), 1, flush_ms="3")
    assert (result.error_code, result.resource_name) == (ErrorCode.invalid_topic_exception, name)
    assert len(result.error_message) < len(name)


@pytest.mark.parametrize(
    ("which", "edit", "code", "phrase"),
    [
        (TOPIC, (SET, "no.such", "1"), ErrorCode.invalid_config, "no.such"),
        (TOPIC, (SET, "retention.ms", "x"), ErrorCode.invalid_config, "whole number"),
        (TOPIC, (SET, "num.partitions", "1"), ErrorCode.invalid_config, "num.partitions"),
        (TOPIC, (SET, "retention.ms", None), ErrorCode.invalid_request, "value is missing"),
        (TOPIC, (4, "retention.ms", "1"), ErrorCode.invalid_request, "operation 4"),
        (SELF, (SET, "no.such", "1"), ErrorCode.invalid_request, "no.such"),
        (SELF, (SET, "num.partitions", "0"), ErrorCode.invalid_request, "at least 1"),
        (SELF, (SET, "log.dirs", "/elsewhere"), ErrorCode.invalid_request, "cannot change while"),
        (ALL, (SET, "broker.id", "7"), ErrorCode.invalid_request, "cannot change while"),
        ((2, "unknown"), (SET, "retention.ms", "1"), ErrorCode.unknown_topic_or_partition, "unknown"),
        ((8, "1"), (SET, "x", "1"), ErrorCode.invalid_request, "resource type 8"),
    ],
)
def test_what_cannot_be_set_is_refused_as_kafka_refuses_it(
    node: Node, which: tuple[int, str], edit: tuple[int, str, str | None], code: ErrorCode, phrase: str
) -> None:
    result = alter(node, which, edit)
    assert (result.error_code, phrase in result.error_message) == (code, True), result.error_message
    if edit[0] == SET:
        entry = {"name": edit[1], "value": edit[2]}
        [whole] = ask(node, "AlterConfigs", 2, resources=[resource(which, [entry])]).responses
        assert (whole.error_code, phrase in whole.error_message) == (code, True), whole.error_message
    assert overrides(node) == {}
    assert node.broker_configs == {}


def test_one_bad_resource_does_not_keep_the_others_from_changing(node: Node) -> None:
    node.create_topic("other")
    entry = {"name": "flush.ms", "config_operation": SET, "value": "1"}
    asked = [resource((2, "other"), [entry, entry]), resource((2, "unknown"), [entry]), resource(TOPIC, [entry])]
    results = ask(node, "IncrementalAlterConfigs", 1, resources=asked).responses
    assert [result.error_code for result in results] == [
        ErrorCode.invalid_request,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.none,
    ]
    assert overrides(node) == {"flush.ms": "1"}


def test_a_resource_that_is_named_twice_is_not_changed(node: Node) -> None:
    entry = {"name": "flush.ms", "config_operation": SET, "value": "1"}
    results = ask(node, "IncrementalAlterConfigs", 1, resources=[resource(TOPIC, [entry])] * 2).responses
    assert [result.error_code for result in results] == [ErrorCode.invalid_request] * 2
    assert overrides(node) == {}


def test_an_override_of_another_release_is_left_out_and_in_nobodys_way(node: Node) -> None:
    node.create_topic("t", config={"of.a.newer.release": "1", "flush.ms": "2", "retention.ms": "no number"})
    told = describe(node, TOPIC, "flush.ms", "retention.ms")
    assert (told["flush.ms"].value, told["retention.ms"].config_source) == ("2", 5)
    assert alter(node, TOPIC, (SET, "segment.bytes", "100")).error_code is ErrorCode.none
    assert alter(node, TOPIC, (DELETE, "of.a.newer.release", None)).error_code is ErrorCode.none
    assert overrides(node) == {"flush.ms": "2", "retention.ms": "no number", "segment.bytes": "100"}
    node.broker_configs = {str(BROKER): {"of.a.newer.release": "1", "broker.id": "9", "num.partitions": "4"}}
    node.create_topic("t")
    assert node.table.broker().layers[0] == {"num.partitions": 4}


class ReadOnly:
    """Everybody may look, nobody may change."""

    def allows(self, ctx: object, operation: Operation, resource: Resource, name: str) -> bool:
        return operation is Operation.DESCRIBE_CONFIGS


def test_who_may_not_change_settings_is_told_so(node: Node) -> None:
    node.ports.authorizer = ReadOnly()
    assert alter(node, TOPIC, (SET, "flush.ms", "1")).error_code is ErrorCode.topic_authorization_failed
    assert alter(node, SELF, (SET, "num.partitions", "1")).error_code is ErrorCode.cluster_authorization_failed
    assert describe(node, TOPIC)["flush.ms"].config_source == 5


# --- layers


def test_a_brokers_own_override_wins_over_that_for_all_and_that_over_the_static_one(node: Node) -> None:
    assert node.table.broker()[NUM_PARTITIONS] == 3
    alter(node, ALL, (SET, "num.partitions", "4"), (SET, "max.connections", "50"))
    assert node.table.broker()[NUM_PARTITIONS] == 4
    alter(node, SELF, (SET, "num.partitions", "5"), (SET, "auto.create.topics.enable", "false"))
    settings = node.table.broker()
    assert (settings[NUM_PARTITIONS], settings[MAX_CONNECTIONS]) == (5, 50)
    assert settings[AUTO_CREATE_TOPICS_ENABLE] is False
    told = describe(node, SELF, "num.partitions", "max.connections", "broker.id")
    assert (told["num.partitions"].value, told["num.partitions"].config_source) == ("5", 2)
    assert synonyms_of(told["num.partitions"]) == [
        ("num.partitions", "5", 2),
        ("num.partitions", "4", 3),
        ("num.partitions", "3", 4),
        ("num.partitions", "1", 5),
    ]
    assert (told["max.connections"].value, told["max.connections"].config_source) == ("50", 3)
    assert (told["broker.id"].read_only, told["num.partitions"].read_only) == (True, False)
    alter(node, SELF, (DELETE, "num.partitions", None))
    alter(node, ALL, (DELETE, "num.partitions", None))
    assert node.table.broker()[NUM_PARTITIONS] == 3


def test_a_topic_follows_its_brokers_synonym(node: Node) -> None:
    node.create_topic("own", config={"segment.bytes": "77"})
    alter(node, ALL, (SET, "log.segment.bytes", "1000"))
    assert node.partition("t").settings[SEGMENT_BYTES] == 1000
    assert node.partition("t").log.config.segment_bytes == 1000
    assert node.partition("own").log.config.segment_bytes == 77
    node.create_topic("made-later")
    assert node.partition("made-later").log.config.segment_bytes == 1000
    told = describe(node, TOPIC, "segment.bytes")["segment.bytes"]
    assert (told.value, told.config_source) == ("1000", 3)
    assert synonyms_of(told) == [("log.segment.bytes", "1000", 3), ("log.segment.bytes", str(1024**3), 5)]
    alter(node, SELF, (SET, "log.segment.bytes", "2000"))
    alter(node, TOPIC, (SET, "segment.bytes", "3000"))
    told = describe(node, TOPIC, "segment.bytes")["segment.bytes"]
    assert [source for *_, source in synonyms_of(told)] == [1, 2, 3, 5]
    assert node.partition("t").log.config.segment_bytes == 3000


@pytest.mark.parametrize("version", VERSIONS["DescribeConfigs"])
def test_the_broker_without_a_name_tells_what_was_set_for_all(node: Node, version: int) -> None:
    assert describe(node, ALL, version=version) == {}
    alter(node, ALL, (SET, "num.partitions", "4"))
    alter(node, SELF, (SET, "num.partitions", "5"), (SET, "max.connections", "5"))
    told = describe(node, ALL, version=version)
    assert list(told) == ["num.partitions"]
    assert (told["num.partitions"].value, told["num.partitions"].config_source) == ("4", 3)
    assert synonyms_of(told["num.partitions"]) == [("num.partitions", "4", 3)]


def test_an_empty_list_of_names_asks_for_all_settings(node: Node) -> None:
    asked = {"resource_type": 2, "resource_name": "t", "configuration_keys": []}
    [result] = ask(node, "DescribeConfigs", 4, resources=[asked]).results
    assert {config.name for config in result.configs} == set(describe(node, TOPIC))


@pytest.mark.parametrize(
    ("which", "code"),
    [
        ((2, "unknown"), ErrorCode.unknown_topic_or_partition),
        ((2, "no/good"), ErrorCode.invalid_topic_exception),
        ((4, "99"), ErrorCode.invalid_request),
        ((4, "x"), ErrorCode.invalid_request),
        ((8, "1"), ErrorCode.invalid_request),
    ],
)
def test_what_has_no_settings_here_is_told_so(node: Node, which: tuple[int, str], code: ErrorCode) -> None:
    asked = {"resource_type": which[0], "resource_name": which[1], "configuration_keys": None}
    [result] = ask(node, "DescribeConfigs", 4, resources=[asked]).results
    assert (result.error_code, result.configs) == (code, ())
    assert result.error_message


def test_types_are_told_from_version_3_on(node: Node) -> None:
    told = describe(node, SELF, version=3)
    assert {name: told[name].config_type for name in ("num.partitions", "auto.create.topics.enable", "log.dirs")} == {
        "num.partitions": 3,
        "auto.create.topics.enable": 1,
        "log.dirs": 7,
    }
    assert told["log.retention.ms"].config_type == 5
    assert all(config.documentation for config in told.values())


def test_documentation_and_synonyms_are_told_only_when_asked_for(node: Node) -> None:
    asked = {"resource_type": 2, "resource_name": "t", "configuration_keys": ["retention.ms"]}
    [result] = ask(node, "DescribeConfigs", 4, resources=[asked]).results
    [config] = result.configs
    assert (config.documentation, config.synonyms) == (None, ())


def test_retention_follows_without_a_restart(node: Node) -> None:
    alter(node, ALL, (SET, "log.segment.bytes", "150"))
    partition = node.partition("t")
    for _ in range(5):
        batch = encode_batch([Record(b"v" * 60, timestamp=1_000_000)])
        partition.append(memoryview(bytearray(batch)), now_ms=node.now_ms())
    for hours in range(2):
        node.maintain(hours * HOUR_MS)
    assert partition.log_start_offset == 5, "all are too old"
    alter(node, ALL, (SET, "log.retention.ms", "-1"))
    for _ in range(5):
        partition.append(memoryview(bytearray(batch)), now_ms=node.now_ms())
    node.maintain(2 * HOUR_MS)
    assert partition.log_start_offset == 5, "nothing is too old any more"
    alter(node, ALL, (SET, "log.retention.bytes", "250"))
    node.maintain(3 * HOUR_MS)
    assert 5 < partition.log_start_offset < 10


def test_a_setting_of_the_broker_reaches_its_log_directories(node: Node) -> None:
    """producer.id.expiration.ms has no topic's row: it is read where all logs are kept."""
    producers = node.partition("t").log.producers
    batch = encode_batch([Record(b"v", timestamp=1)], producer_id=7, producer_epoch=0, base_sequence=0)
    node.partition("t").append(memoryview(bytearray(batch)), now_ms=node.now_ms())
    for hours in range(3):
        node.maintain(hours * HOUR_MS)
    assert len(producers) == 1
    alter(node, SELF, (SET, "producer.id.expiration.ms", "1000"))
    node.maintain(3 * HOUR_MS)
    assert len(producers) == 0


# --- the port to the metadata store


def test_a_change_returns_once_this_broker_knows_it(node: Node) -> None:
    """So that who changes a setting and asks the same broker for it is not told the old one."""
    store = MemoryStore(MemoryTree())
    store.start()
    ensure_cluster(store)
    store.create(paths.topic_config(TopicName("t")), paths.encode_config({}))
    port = StoredConfigs(store, node.table)
    changing = threading.Thread(
        target=port.alter_topic, args=("t", lambda old: {"flush.ms": "1"}), kwargs={"validate_only": False}
    )
    changing.start()
    wait_until(lambda: stored_configs(store, paths.topic_config(TopicName("t"))), 30, "it is written")
    changing.join(0.1)
    assert changing.is_alive(), "the controller has not told yet"
    node.create_topic("t", config={"flush.ms": "1"})
    changing.join(scaled(30))
    assert not changing.is_alive()
    assert overrides(node) == {"flush.ms": "1"}


def test_settings_that_the_store_does_not_take_are_refused_at_once(node: Node) -> None:
    """Another program filled the node, so that it cannot be written together with the notice."""
    store = MemoryStore(MemoryTree())
    store.start()
    ensure_cluster(store)
    path = paths.topic_config(TopicName("t"))
    overrides = {"flush.ms": "1", "x": ""}
    overrides["x"] = "y" * (MAX_WRITE_BYTES - len(path) - 200 - len(paths.encode_config(overrides)))
    store.create(path, paths.encode_config(overrides))
    port = StoredConfigs(store, node.table)
    with pytest.raises(InvalidConfig, match=f"{MAX_WRITE_BYTES} can be written at once"):
        port.alter_topic(TopicName("t"), lambda old: {**old, "flush.ms": "2"}, validate_only=False)
