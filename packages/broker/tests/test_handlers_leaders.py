"""Whom a broker names as leader, with its lease and without, without sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kit.node import BROKER, Node
from kit.wire import produce_request, request
from raylog.broker.handlers import TABLE
from raylog.coordination.metadata.model import BrokerInfo, Endpoint
from raylog.protocol.ids import BrokerEpoch, BrokerId
from raylog.protocol.records import Record, encode_batch
from raylog.protocol.wire.messages import decode_response
from raylog.protocol.wire.produce import ProducedPartition, parse_produce_response

OTHER = 2
KEYS = {row.name: row.key for row in TABLE}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """It leads ``mine``; ``theirs`` is led by another."""
    with Node(tmp_path) as node:
        node.others.append(
            BrokerInfo(BrokerId(OTHER), BrokerEpoch(1), (Endpoint("PLAINTEXT", "127.0.0.1", 9093),), rack="rack-2")
        )
        node.create_topic("mine", leader_epoch=3, replicas=(BROKER, OTHER))
        node.create_topic("theirs", leader=OTHER, leader_epoch=4, replicas=(BROKER, OTHER))
        yield node


def leaders(node: Node, api: str, version: int, **values: Any) -> dict[str, tuple[int, int, ErrorCode]]:
    """Leader, leader epoch and error of each topic's only partition."""
    topics = [{"name": "mine"}, {"name": "theirs"}]
    reply = node.answer(request(KEYS[api], version, topics=topics, **values)[4:])
    assert isinstance(reply, bytes)
    response: Any = decode_response(KEYS[api], version, reply)[1]
    return {
        topic.name: (part.leader_id, part.leader_epoch, part.error_code)
        for topic in response.topics
        for part in topic.partitions
    }


def produce(node: Node, topic: str) -> ProducedPartition:
    reply = node.answer(produce_request(topic, encode_batch([Record(b"v")]), version=10)[4:])
    assert isinstance(reply, bytes)
    return parse_produce_response(10, reply)[1].topics[0].partitions[0]


@pytest.mark.parametrize(
    ("api", "version", "values"),
    [("Metadata", 9, {}), ("DescribeTopicPartitions", 0, {"response_partition_limit": 100, "cursor": None})],
)
def test_without_its_lease_a_broker_does_not_name_itself(
    node: Node, api: str, version: int, values: dict[str, Any]
) -> None:
    named = {"mine": (BROKER, 3, ErrorCode.none), "theirs": (OTHER, 4, ErrorCode.none)}
    assert leaders(node, api, version, **values) == named
    node.lease_held = False
    lapsed = {**named, "mine": (-1, 3, ErrorCode.leader_not_available)}
    assert leaders(node, api, version, **values) == lapsed
    node.lease_held = True
    assert leaders(node, api, version, **values) == named


def test_without_its_lease_a_broker_is_still_listed(node: Node) -> None:
    node.lease_held = False
    reply = node.answer(request(KEYS["Metadata"], 9, topics=())[4:])
    assert isinstance(reply, bytes)
    response: Any = decode_response(KEYS["Metadata"], 9, reply)[1]
    assert [broker.node_id for broker in response.brokers] == [BROKER, OTHER]


def test_without_its_lease_a_broker_sends_nobody_to_itself(node: Node) -> None:
    node.lease_held = False
    refused = produce(node, "mine")
    assert (refused.error_code, refused.leader_id, refused.leader_epoch) == (6, -1, -1)
    elsewhere = produce(node, "theirs")
    assert (elsewhere.error_code, elsewhere.leader_id, elsewhere.leader_epoch) == (6, OTHER, 4)
