"""A produce with acks=all whose followers have not fetched yet: when it is answered, and what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from kit.node import LISTENER, Node
from kit.waiting import wait_until
from kit.wire import produce_request
from raylog.broker.handlers.context import DelayedReply
from raylog.coordination.metadata.model import BrokerInfo, Endpoint
from raylog.protocol.ids import BrokerEpoch, BrokerId
from raylog.protocol.records import Record, encode_batch
from raylog.protocol.wire.produce import ProducedPartition, ProduceResponse, parse_produce_response

FOLLOWER = BrokerId(2)
BATCH = encode_batch([Record(b"one"), Record(b"two")])
VERSION = 10


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as node:
        node.create_topic("t", leader_epoch=3, replicas=(1, 2))
        yield node


def produce(node: Node, timeout_ms: int = 60_000) -> DelayedReply:
    reply = node.answer(produce_request("t", BATCH, version=VERSION, acks=-1, timeout_ms=timeout_ms)[4:])
    assert isinstance(reply, DelayedReply)
    return reply


def parsed(reply: object) -> ProduceResponse:
    assert isinstance(reply, bytes)
    return parse_produce_response(VERSION, reply)[1]


def finished(reply: DelayedReply) -> ProducedPartition:
    [topic] = parsed(reply.finish()).topics
    [partition] = topic.partitions
    return partition


def test_produce_waits_until_the_follower_has_the_last_record(node: Node) -> None:
    reply = produce(node)
    assert not reply.is_over()
    node.follower_has("t", 1, leader_epoch=3)
    assert not reply.is_over()
    node.follower_has("t", 2, leader_epoch=3)
    assert reply.is_over()
    assert reply.wait(0)
    produced = finished(reply)
    assert (produced.error_code, produced.base_offset) == (ErrorCode.none, 0)


def test_produce_that_is_not_committed_in_time_is_timed_out(node: Node) -> None:
    reply = produce(node, timeout_ms=50)
    wait_until(lambda: reply.wait(0.01), 10, "the end of the produce's time")
    assert finished(reply).error_code == ErrorCode.request_timed_out
    assert node.produces.waiting == 0


def test_produce_whose_client_left_is_not_waited_for(node: Node) -> None:
    reply = produce(node)
    assert node.produces.waiting == 1
    reply.abandon()
    assert node.produces.waiting == 0


def test_committed_produce_without_lease_is_not_acknowledged(node: Node) -> None:
    reply = produce(node)
    node.follower_has("t", 2, leader_epoch=3)
    assert reply.is_over()
    node.lease_held = False
    assert finished(reply).error_code == ErrorCode.not_leader_or_follower


def test_refused_produce_tells_where_broker_zero_leads(node: Node) -> None:
    node.others.append(BrokerInfo(BrokerId(0), BrokerEpoch(1), (Endpoint(LISTENER, "zero", 9090),)))
    node.create_topic("t", leader_epoch=4, leader=0, replicas=(0, 1))
    response = parsed(node.answer(produce_request("t", BATCH, version=VERSION, acks=-1)[4:]))
    [[refused]] = [topic.partitions for topic in response.topics]
    assert (refused.error_code, refused.leader_id, refused.leader_epoch) == (ErrorCode.not_leader_or_follower, 0, 4)
    assert [(each.node_id, each.host, each.port) for each in response.node_endpoints] == [(0, "zero", 9090)]
