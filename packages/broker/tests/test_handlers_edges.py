"""Requests at their edges, answered as an Apache Kafka 4.2.0 broker answered them: names, nulls, and the same twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from kit.node import BROKER, Node
from kit.node_calls import ask
from kit.partitions import append
from raylog.broker.handlers import TABLE
from raylog.broker.handlers.context import Operation, Resource
from raylog.protocol.errors import RequestTimedOut

VERSIONS = {row.name: range(row.min_version, row.max_version + 1) for row in TABLE}
UNKNOWN = -(2**31)
TOPIC_OPERATIONS, CLUSTER_OPERATIONS = 3576, 8096
NOBODY = UUID(int=7)
BAD_NAMES = [" ", "..", "a/b", "ä", "x" * 250]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as node:
        node.create_topic("t", partitions=2)
        yield node


# --- what a client may do (KIP-430)


class OnlyDescribe:
    def allows(self, ctx: object, operation: Operation, resource: Resource, name: str) -> bool:
        return operation is Operation.DESCRIBE and name != "hidden"


@pytest.mark.parametrize("version", [version for version in VERSIONS["Metadata"] if version >= 8])
def test_metadata_tells_operations_when_asked(node: Node, version: int) -> None:
    topics = [{"name": name, "topic_id": None} for name in ("t", "absent")]
    wants: dict[str, Any] = {"include_topic_authorized_operations": True}
    if version <= 10:
        wants["include_cluster_authorized_operations"] = True
    told = ask(node, "Metadata", version, topics=topics, allow_auto_topic_creation=False, **wants)
    assert [topic.topic_authorized_operations for topic in told.topics] == [TOPIC_OPERATIONS] * 2
    assert version > 10 or told.cluster_authorized_operations == CLUSTER_OPERATIONS
    told = ask(node, "Metadata", version, topics=topics, allow_auto_topic_creation=False)
    assert [topic.topic_authorized_operations for topic in told.topics] == [UNKNOWN] * 2
    assert version > 10 or told.cluster_authorized_operations == UNKNOWN


def test_operations_are_those_that_are_allowed(node: Node) -> None:
    node.ports.authorizer = OnlyDescribe()
    topics = [{"name": name, "topic_id": None} for name in ("t", "hidden")]
    told = ask(node, "Metadata", 12, topics=topics, include_topic_authorized_operations=True)
    assert [topic.topic_authorized_operations for topic in told.topics] == [1 << 8, UNKNOWN]


@pytest.mark.parametrize("version", VERSIONS["DescribeCluster"])
def test_describe_cluster_tells_operations_when_asked(node: Node, version: int) -> None:
    told = [
        ask(
            node, "DescribeCluster", version, include_cluster_authorized_operations=wanted
        ).cluster_authorized_operations
        for wanted in (True, False)
    ]
    assert told == [CLUSTER_OPERATIONS, UNKNOWN]


def test_describe_topic_partitions_tells_operations(node: Node) -> None:
    topics = [{"name": "absent"}, {"name": "t"}]
    told = ask(node, "DescribeTopicPartitions", 0, topics=topics, response_partition_limit=9, cursor=None)
    assert [topic.topic_authorized_operations for topic in told.topics] == [TOPIC_OPERATIONS] * 2


# --- names and ids


@pytest.mark.parametrize("version", [12, 13])
def test_metadata_goes_by_the_id_where_both_are_given(node: Node, version: int) -> None:
    [topic] = ask(node, "Metadata", version, topics=[{"name": "t", "topic_id": NOBODY}]).topics
    assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.unknown_topic_id, None, NOBODY)


@pytest.mark.parametrize(("kind", "code"), [(2, "mismatched_endpoint_type"), (3, "unsupported_endpoint_type")])
def test_describe_cluster_refuses_other_endpoints(node: Node, kind: int, code: str) -> None:
    assert ask(node, "DescribeCluster", 1, endpoint_type=kind).error_code is ErrorCode[code]


def test_delete_topics_tells_the_id(node: Node) -> None:
    [made] = ask(node, "Metadata", 12, topics=[{"name": "t", "topic_id": None}]).topics
    [result] = ask(node, "DeleteTopics", 6, topics=[{"name": "t", "topic_id": None}]).responses
    assert (result.error_code, result.name, result.topic_id) == (ErrorCode.none, "t", made.topic_id)


def test_delete_topics_refuses_neither_name_nor_id(node: Node) -> None:
    [result] = ask(node, "DeleteTopics", 6, topics=[{"name": None, "topic_id": None}]).responses
    assert (result.error_code, result.topic_id) == (ErrorCode.invalid_request, None)


@pytest.mark.parametrize("api", ["AlterConfigs", "IncrementalAlterConfigs"])
def test_altered_topics_have_names_that_topics_can_have(node: Node, api: str) -> None:
    configs = [{"name": "flush.ms", "value": "1"}]
    resources = [{"resource_type": 2, "resource_name": name, "configs": configs} for name in ["", *BAD_NAMES]]
    codes = [each.error_code for each in ask(node, api, 1, resources=resources).responses]
    assert codes == [ErrorCode.invalid_request, *[ErrorCode.invalid_topic_exception] * len(BAD_NAMES)]


def test_describe_producers_checks_names(node: Node) -> None:
    asked = [{"name": name, "partition_indexes": [0]} for name in ["", *BAD_NAMES, "absent"]]
    told = ask(node, "DescribeProducers", 0, topics=asked).topics
    codes = [topic.partitions[0].error_code for topic in told]
    assert codes == [ErrorCode.invalid_topic_exception] * 6 + [ErrorCode.unknown_topic_or_partition]


@pytest.mark.parametrize("operation", range(4))
def test_settings_have_names(node: Node, operation: int) -> None:
    entry: dict[str, Any] = {"name": "", "value": "1"}
    for api in ("AlterConfigs", "IncrementalAlterConfigs"):
        if api == "IncrementalAlterConfigs":
            entry["config_operation"] = operation
        resource = {"resource_type": 2, "resource_name": "t", "configs": [entry]}
        [result] = ask(node, api, 1, resources=[resource]).responses
        assert result.error_code is ErrorCode.invalid_config


@pytest.mark.parametrize("version", [version for version in VERSIONS["CreateTopics"] if version >= 5])
def test_create_topics_refuses_a_setting_without_a_value(node: Node, version: int) -> None:
    configs = [{"name": "retention.ms", "value": None}]
    wanted = {"name": "n", "num_partitions": 1, "replication_factor": 1, "configs": configs}
    [result] = ask(node, "CreateTopics", version, topics=[wanted]).topics
    assert (result.error_code, result.configs) == (ErrorCode.invalid_config, ())
    assert "n" not in node.table.state().topics


@pytest.mark.parametrize(
    ("api", "entry"),
    [
        ("AlterConfigs", {"name": "retention.ms", "value": "x"}),
        ("IncrementalAlterConfigs", {"name": "retention.ms", "value": "x", "config_operation": 0}),
        ("IncrementalAlterConfigs", {"name": "cleanup.policy", "value": "x", "config_operation": 2}),
    ],
)
def test_settings_are_checked_before_topics(node: Node, api: str, entry: dict[str, Any]) -> None:
    resource = {"resource_type": 2, "resource_name": "none", "configs": [entry]}
    [result] = ask(node, api, 1, resources=[resource]).responses
    assert result.error_code is ErrorCode.invalid_config


@pytest.mark.parametrize(("operation", "value"), [(0, "1"), (2, "1"), (3, "1"), (0, "x")])
def test_unknown_operations_are_told_before_wrong_settings(node: Node, operation: int, value: str) -> None:
    entries = [
        {"name": "segment.bytes", "value": value, "config_operation": operation},
        {"name": "flush.ms", "value": "1", "config_operation": 4},
    ]
    resource = {"resource_type": 2, "resource_name": "t", "configs": entries}
    [result] = ask(node, "IncrementalAlterConfigs", 1, resources=[resource]).responses
    assert result.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("operation", [0, 2, 3])
def test_settings_need_values_before_they_need_be_lists(node: Node, operation: int) -> None:
    entry = {"name": "retention.ms", "value": None, "config_operation": operation}
    resource = {"resource_type": 2, "resource_name": "t", "configs": [entry]}
    [result] = ask(node, "IncrementalAlterConfigs", 1, resources=[resource]).responses
    assert result.error_code is ErrorCode.invalid_request


def test_create_topics_looks_at_numbers_before_assignments(node: Node) -> None:
    twice = [{"partition_index": 0, "broker_ids": [BROKER]}] * 2
    wanted = {"name": "n", "num_partitions": 1, "replication_factor": 1, "assignments": twice}
    [result] = ask(node, "CreateTopics", 7, topics=[wanted]).topics
    assert result.error_code is ErrorCode.invalid_request


# --- the same twice, and nothing


def test_delete_records_takes_the_last_offset_of_a_partition(node: Node) -> None:
    for _ in range(3):
        append(node.partition("t"), b"v")
    parts = [{"partition_index": 0, "offset": 2}, {"partition_index": 0, "offset": 1}]
    topics = [{"name": "t", "partitions": parts[:1]}, {"name": "t", "partitions": parts[1:]}, {"name": "none"}]
    [topic] = ask(node, "DeleteRecords", 2, topics=topics).topics
    [told] = topic.partitions
    assert (told.error_code, told.low_watermark, node.partition("t").log_start_offset) == (ErrorCode.none, 1, 1)


def test_elect_leaders_answers_as_it_was_asked(node: Node) -> None:
    asked = [{"topic": "t", "partitions": [1, 1]}, {"topic": "t", "partitions": []}]
    told = ask(node, "ElectLeaders", 2, topic_partitions=asked, election_type=0).replica_election_results
    assert [(topic.topic, [each.partition_id for each in topic.partition_result]) for topic in told] == [
        ("t", [1, 1]),
        ("t", []),
    ]


def test_elect_leaders_of_all_names_every_topic(node: Node) -> None:
    told = ask(node, "ElectLeaders", 2, topic_partitions=None, election_type=0).replica_election_results
    assert [(topic.topic, topic.partition_result) for topic in told] == [("t", ())]


def test_reassignments_are_answered_as_they_were_asked(node: Node) -> None:
    moves = [{"partition_index": index, "replicas": [BROKER]} for index in (0, 1)]
    asked = [{"name": "t", "partitions": moves[:1]}, {"name": "t", "partitions": moves[1:]}, {"name": "t"}]
    told = ask(node, "AlterPartitionReassignments", 1, topics=asked).responses
    assert [(topic.name, [each.partition_index for each in topic.partitions]) for topic in told] == [
        ("t", [0]),
        ("t", [1]),
        ("t", []),
    ]


def test_failed_reassignments_are_told_by_each_partition(node: Node) -> None:
    class Late:
        def reassign(self, *_: Any, **__: Any) -> Any:
            raise RequestTimedOut("late")

    node.ports.topics = Late()  # type: ignore[assignment]
    moves = [{"partition_index": index, "replicas": None} for index in (0, 1)]
    told = ask(node, "AlterPartitionReassignments", 1, topics=[{"name": "t", "partitions": moves}])
    [topic] = told.responses
    codes = [told.error_code, *[each.error_code for each in topic.partitions]]
    assert codes == [ErrorCode.request_timed_out] * 3
