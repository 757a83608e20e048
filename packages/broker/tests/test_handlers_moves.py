"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments, without sockets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kit.node import BROKER, Node
from kit.node_calls import ask
from raylog.broker.handlers import TABLE
from raylog.broker.handlers.context import Operation, Resource

VERSIONS = {row.name: range(row.min_version, row.max_version + 1) for row in TABLE}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as node:
        yield node


class Denies:
    """Nobody may do anything to the cluster."""

    def allows(self, ctx: object, operation: Operation, resource: Resource, name: str) -> bool:
        return resource is not Resource.CLUSTER


# --- ElectLeaders


def elect(
    node: Node, version: int, partitions: Mapping[str, Sequence[int]] | None, election_type: int = 0
) -> tuple[ErrorCode, dict[tuple[str, int], ErrorCode]]:
    asked = None
    if partitions is not None:
        asked = [{"topic": topic, "partitions": list(indexes)} for topic, indexes in partitions.items()]
    kind = {"election_type": election_type} if version >= 1 else {}
    response = ask(node, "ElectLeaders", version, topic_partitions=asked, **kind)
    results = {
        (topic.topic, each.partition_id): each.error_code
        for topic in response.replica_election_results
        for each in topic.partition_result
    }
    return getattr(response, "error_code", ErrorCode.none), results


@pytest.mark.parametrize("version", VERSIONS["ElectLeaders"])
def test_each_partition_has_its_own_result(node: Node, version: int) -> None:
    node.create_topic("led")
    node.create_topic("offline", leader=-1)
    code, results = elect(node, version, {"led": [0], "offline": [0], "nope": [3]})
    assert code is ErrorCode.none
    assert results == {
        ("led", 0): ErrorCode.election_not_needed,
        ("offline", 0): ErrorCode.none,
        ("nope", 3): ErrorCode.unknown_topic_or_partition,
    }


@pytest.mark.parametrize("version", VERSIONS["ElectLeaders"])
def test_of_all_partitions_only_those_are_told_that_needed_it(node: Node, version: int) -> None:
    node.create_topic("led", partitions=3)
    node.create_topic("offline", leader=-1)
    assert elect(node, version, None) == (ErrorCode.none, {("offline", 0): ErrorCode.none})


@pytest.mark.parametrize("version", VERSIONS["ElectLeaders"])
def test_only_the_controller_elects(node: Node, version: int) -> None:
    node.create_topic("t")
    node.is_controller = False
    code, results = elect(node, version, {"t": [0]})
    assert results == {("t", 0): ErrorCode.not_controller}
    assert code is (ErrorCode.not_controller if version >= 1 else ErrorCode.none)


def test_who_may_not_alter_the_cluster_elects_nobody(node: Node) -> None:
    node.create_topic("t")
    node.ports.authorizer = Denies()
    assert elect(node, 2, {"t": [0]})[0] is ErrorCode.cluster_authorization_failed


def test_an_unknown_kind_of_election_is_refused(node: Node) -> None:
    assert elect(node, 2, {}, election_type=2)[0] is ErrorCode.invalid_request


# --- reassignments


def move(node: Node, version: int, to: Mapping[tuple[str, int], Sequence[int] | None], **more: Any) -> Any:
    topics = [
        {"name": topic, "partitions": [{"partition_index": index, "replicas": replicas}]}
        for (topic, index), replicas in to.items()
    ]
    return ask(node, "AlterPartitionReassignments", version, topics=topics, **more)


def moves(node: Node, topics: Mapping[str, Sequence[int]] | None = None) -> dict[tuple[str, int], tuple[Any, ...]]:
    asked = None
    if topics is not None:
        asked = [{"name": name, "partition_indexes": list(indexes)} for name, indexes in topics.items()]
    response = ask(node, "ListPartitionReassignments", 0, topics=asked)
    assert response.error_code is ErrorCode.none
    return {
        (topic.name, each.partition_index): (each.replicas, each.adding_replicas, each.removing_replicas)
        for topic in response.topics
        for each in topic.partitions
    }


@pytest.mark.parametrize("version", VERSIONS["AlterPartitionReassignments"])
def test_a_move_is_begun_listed_and_cancelled(node: Node, version: int) -> None:
    node.create_topic("t", partitions=2)
    response = move(node, version, {("t", 1): [2, 3], ("nope", 0): [2]})
    assert response.error_code is ErrorCode.none
    results = {topic.name: topic.partitions[0].error_code for topic in response.responses}
    assert results == {"t": ErrorCode.none, "nope": ErrorCode.unknown_topic_or_partition}
    expected = {("t", 1): ((2, 3, BROKER), (2, 3), (BROKER,))}
    assert moves(node) == expected
    assert moves(node, {"t": [0, 1], "nope": [0]}) == expected
    assert moves(node, {"t": [0]}) == moves(node, {}) == {}
    move(node, version, {("t", 1): None})
    assert moves(node) == {}


def test_another_number_of_replicas_may_be_forbidden(node: Node) -> None:
    node.create_topic("t")
    response = move(node, 1, {("t", 0): [2, 3]}, allow_replication_factor_change=False)
    assert response.allow_replication_factor_change is False
    assert response.responses[0].partitions[0].error_code is ErrorCode.invalid_replication_factor
    assert "1 replicas" in response.responses[0].partitions[0].error_message


@pytest.mark.parametrize("version", VERSIONS["AlterPartitionReassignments"])
def test_only_the_controller_moves_partitions(node: Node, version: int) -> None:
    node.is_controller = False
    response = move(node, version, {("t", 0): [2]})
    [topic] = response.responses
    codes = [response.error_code, *[each.error_code for each in topic.partitions]]
    assert codes == [ErrorCode.not_controller] * 2


def test_who_has_no_right_to_the_cluster_neither_moves_nor_lists(node: Node) -> None:
    node.ports.authorizer = Denies()
    assert move(node, 1, {("t", 0): [2]}).error_code is ErrorCode.cluster_authorization_failed
    listed = ask(node, "ListPartitionReassignments", 0, topics=None)
    assert listed.error_code is ErrorCode.cluster_authorization_failed
