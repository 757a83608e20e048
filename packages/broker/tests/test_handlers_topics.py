"""CreatePartitions, DescribeTopicPartitions, and topics by id, without sockets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode

from kit.node import BROKER, Node
from kit.node_calls import ask
from raylog.broker.handlers import TABLE
from raylog.broker.handlers.context import Operation, Resource
from raylog.protocol.wire.primitives import ZERO_UUID

GROWING = next(range(row.min_version, row.max_version + 1) for row in TABLE if row.name == "CreatePartitions")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as node:
        yield node


class Denies:
    """Nobody may do ``operation``, or anything to the topic ``hidden``."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    def allows(self, ctx: object, operation: Operation, resource: Resource, name: str) -> bool:
        return operation is not self._operation and name != "hidden"


# --- CreatePartitions


@pytest.mark.parametrize("version", GROWING)
def test_create_partitions(node: Node, version: int) -> None:
    node.create_topic("t")
    node.create_topic("twice")
    wanted = [
        {"name": "t", "count": 3, "assignments": None},
        {"name": "unknown", "count": 3, "assignments": None},
        {"name": "twice", "count": 3, "assignments": None},
        {"name": "twice", "count": 3, "assignments": None},
    ]
    response = ask(node, "CreatePartitions", version, topics=wanted)
    assert {result.name: result.error_code for result in response.results} == {
        "t": ErrorCode.none,
        "unknown": ErrorCode.unknown_topic_or_partition,
        "twice": ErrorCode.invalid_request,
    }
    assert len(response.results) == 3
    assert {name: len(topic.partitions) for name, topic in node.table.state().topics.items()} == {"t": 3, "twice": 1}


@pytest.mark.parametrize("version", GROWING)
def test_create_partitions_elsewhere_than_the_controller(node: Node, version: int) -> None:
    node.create_topic("t")
    node.is_controller = False
    [result] = ask(node, "CreatePartitions", version, topics=[{"name": "t", "count": 3}]).results
    assert result.error_code is ErrorCode.not_controller


def test_who_may_not_alter_a_topic_does_not_grow_it(node: Node) -> None:
    node.create_topic("t")
    node.ports.authorizer = Denies(Operation.ALTER)
    [result] = ask(node, "CreatePartitions", 3, topics=[{"name": "t", "count": 3}]).results
    assert result.error_code is ErrorCode.topic_authorization_failed


# --- DescribeTopicPartitions


def page(node: Node, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    return ask(
        node,
        "DescribeTopicPartitions",
        0,
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]},
    )


def shown(response: Any) -> list[tuple[str, list[int]]]:
    return [(topic.name, [part.partition_index for part in topic.partitions]) for topic in response.topics]


def test_topics_come_sorted_with_their_partitions(node: Node) -> None:
    topic = node.create_topic("b", partitions=2, leader_epoch=4)
    node.create_topic("a")
    response = page(node)
    assert shown(response) == [("a", [0]), ("b", [0, 1])]
    assert response.next_cursor is None
    second = response.topics[1]
    assert (second.error_code, second.topic_id, second.is_internal) == (ErrorCode.none, topic.id, False)
    first = second.partitions[0]
    assert (first.leader_id, first.leader_epoch, first.replica_nodes, first.isr_nodes) == (
        BROKER,
        4,
        (BROKER,),
        (BROKER,),
    )
    assert (first.error_code, first.eligible_leader_replicas, first.last_known_elr) == (ErrorCode.none, (), ())


def test_topics_that_are_asked_for_and_not_there_are_errors_of_their_own(node: Node) -> None:
    node.create_topic("t")
    response = page(node, "unknown", "t", "t", "no/good")
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("no/good", ErrorCode.invalid_topic_exception),
        ("t", ErrorCode.none),
        ("unknown", ErrorCode.unknown_topic_or_partition),
    ]


@pytest.mark.parametrize("limit", range(1, 9))
def test_pages_together_are_the_whole_whatever_their_size(node: Node, limit: int) -> None:
    counts = {"a": 3, "b": 1, "c": 3}
    for name, count in counts.items():
        node.create_topic(name, partitions=count)
    seen: list[tuple[str, int]] = []
    cursor = None
    pages = 0
    while True:
        response = page(node, limit=limit, cursor=cursor)
        here = [(name, index) for name, indexes in shown(response) for index in indexes]
        assert 0 < len(here) <= limit
        seen += here
        pages += 1
        if response.next_cursor is None:
            break
        cursor = (response.next_cursor.topic_name, response.next_cursor.partition_index)
    assert seen == [(name, index) for name, count in counts.items() for index in range(count)]
    assert pages == -(-7 // limit)


def test_a_page_has_at_least_one_and_at_most_two_thousand_partitions(node: Node) -> None:
    node.create_topic("wide", partitions=2_001, leader=2, replicas=(2,))
    assert shown(page(node, limit=0)) == [("wide", [0])]
    response = page(node, limit=100_000)
    assert shown(response) == [("wide", list(range(2_000)))]
    assert (response.next_cursor.topic_name, response.next_cursor.partition_index) == ("wide", 2_000)


def test_a_cursor_beyond_the_topic_goes_on_with_the_next(node: Node) -> None:
    node.create_topic("a")
    node.create_topic("c", partitions=2)
    assert shown(page(node, cursor=("a", 5))) == [("a", []), ("c", [0, 1])]


def test_a_cursor_at_a_topic_that_is_gone_begins_with_the_first_partition_of_the_next(node: Node) -> None:
    node.create_topic("a")
    node.create_topic("c", partitions=2)
    assert shown(page(node, cursor=("b", 1))) == [("c", [0, 1])]


@pytest.mark.parametrize("cursor", [("t", -1), ("other", 0)])
def test_a_cursor_that_makes_no_sense_is_an_invalid_request(node: Node, cursor: tuple[str, int]) -> None:
    node.create_topic("t")
    [topic] = page(node, "t", cursor=cursor).topics
    assert (topic.name, topic.error_code) == ("t", ErrorCode.invalid_request)


def test_hidden_topics_are_left_out_unless_asked_for(node: Node) -> None:
    node.create_topic("t")
    node.create_topic("hidden")
    node.ports.authorizer = Denies(Operation.DELETE)
    assert shown(page(node)) == [("t", [0])]
    [hidden] = page(node, "hidden").topics
    assert (hidden.error_code, hidden.partitions) == (ErrorCode.topic_authorization_failed, ())


# --- topic ids


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("named", [True, False])
def test_metadata_takes_no_ids_before_version_12(node: Node, version: int, named: bool) -> None:
    topic = node.create_topic("t")
    asked = {"name": "t" if named else None, "topic_id": topic.id}
    [answer] = ask(node, "Metadata", version, topics=[asked]).topics
    assert (answer.error_code, answer.name) == (ErrorCode.invalid_request, "t" if named else "")


def test_metadata_by_id_of_a_topic_that_was_made_again_is_unknown(node: Node) -> None:
    node.create_topic("t")
    [answer] = ask(node, "Metadata", 12, topics=[{"name": None, "topic_id": uuid4()}]).topics
    assert answer.error_code is ErrorCode.unknown_topic_id


def test_who_left_the_isr_last_is_told(node: Node) -> None:
    node.create_topic("t", replicas=(BROKER, 2, 3), isr=(BROKER,), elr=(2, 3))
    told = page(node).topics[0].partitions[0]
    assert told.eligible_leader_replicas == (2, 3)


def test_topic_that_is_named_twice_is_told_once(node: Node) -> None:
    node.create_topic("twice")
    named = [{"name": "twice"}, {"name": "absent"}, {"name": "twice"}, {"name": "absent"}]
    assert [topic.name for topic in ask(node, "Metadata", 12, topics=named).topics] == ["twice", "absent"]


def test_topic_whose_deletion_is_asked_twice_stays(node: Node) -> None:
    """Kafka: INVALID_REQUEST, once."""
    node.create_topic("stays")
    [answer] = ask(node, "DeleteTopics", 6, topics=[{"name": "stays"}, {"name": "stays"}]).responses
    assert (answer.name, answer.error_code) == ("stays", ErrorCode.invalid_request)
    assert node.partition("stays").role.is_leader


@pytest.mark.parametrize(
    "topics",
    [
        [{"name": f"t{number}", "num_partitions": 1, "replication_factor": 1} for number in range(10_001)],
        [{"name": "a", "num_partitions": 10_000, "replication_factor": 1}, {"name": "b", "num_partitions": -1}],
    ],
    ids=["topics", "partitions"],
)
def test_request_for_very_many_partitions_makes_none(node: Node, topics: list[dict[str, Any]]) -> None:
    answers = ask(node, "CreateTopics", 7, topics=topics).topics
    assert {answer.error_code for answer in answers} == {ErrorCode.policy_violation}
    assert len(answers) == len(topics)
    assert not node.table.state().topics


# --- Metadata of what cannot be told


@pytest.mark.parametrize("version", [10, 12])
def test_metadata_names_a_refused_topic_as_it_was_asked_for(node: Node, version: int) -> None:
    hidden = node.create_topic("hidden")
    node.ports = replace(node.ports, authorizer=Denies(Operation.WRITE))
    [by_name] = ask(node, "Metadata", version, topics=[{"name": "hidden", "topic_id": ZERO_UUID}]).topics
    assert (by_name.name, by_name.topic_id) == ("hidden", None)
    assert (by_name.error_code, by_name.partitions) == (ErrorCode.topic_authorization_failed, ())
    if version >= 12:
        [by_id] = ask(node, "Metadata", version, topics=[{"name": None, "topic_id": hidden.id}]).topics
        assert (by_id.name, by_id.topic_id) == (None, hidden.id)
        assert by_id.error_code is ErrorCode.topic_authorization_failed
