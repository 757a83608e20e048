"""Requests by topic id, while the topic gives way to another one of its name: none of them reaches that one's log.

The moment between the look-up of the name and that of the partition is made by the view of the cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.machine import scaled
from kit.node import BROKER, Node, sent
from kit.waiting import wait_until
from kit.wire import fetch_request, produce_request
from raylog.coordination.metadata.model import ClusterState
from raylog.protocol.errors import ErrorCode
from raylog.protocol.ids import BrokerId, TimestampMs, TopicId
from raylog.protocol.records import Record, encode_batch
from raylog.protocol.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchTopic, parse_fetch_response
from raylog.protocol.wire.produce import ProducedPartition, parse_produce_response

FOLLOWER = BrokerId(2)
BATCH = encode_batch([Record(b"of the first topic")])
OTHER = encode_batch([Record(b"of the second topic")])
FETCH_VERSION = 17


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as node:
        yield node


class Meanwhile:
    """The cluster as the broker knows it; once somebody has seen it, something happens."""

    broker_id = BROKER

    def __init__(self, node: Node, happens: Callable[[], None]) -> None:
        self._node = node
        self._happens: Callable[[], None] | None = happens

    def state(self) -> ClusterState:
        state = self._node.table.state()
        happens, self._happens = self._happens, None
        if happens is not None:
            happens()
        return state


def append(node: Node, batch: bytes) -> None:
    node.partition("t").append(memoryview(bytearray(batch)), now_ms=TimestampMs(1))


def replaced_with_records(node: Node) -> Callable[[], None]:
    def happens() -> None:
        node.replace_topic("t")
        append(node, OTHER)

    return happens


def produce(node: Node, topic_id: TopicId, acks: int) -> ProducedPartition:
    reply = node.answer(produce_request("t", BATCH, version=13, topic_id=topic_id, acks=acks)[4:])
    assert isinstance(reply, bytes)
    return parse_produce_response(13, reply)[1].topics[0].partitions[0]


def fetch(node: Node, topic_id: TopicId, *, max_wait_ms: int = 0, replica: int = -1) -> FetchedPartition[memoryview]:
    part = FetchPartition(0, 0, 1 << 20, 0)
    asked = FetchRequest(max_wait_ms, 1, [FetchTopic("", topic_id, [part])], replica_id=replica, replica_epoch=1)
    data = sent(node.answer(fetch_request(FETCH_VERSION, asked)[4:]))
    [topic] = parse_fetch_response(FETCH_VERSION, data)[1].topics
    [found] = topic.partitions
    return found


@pytest.mark.parametrize("acks", [1, -1])
def test_produce_by_id_does_not_reach_a_topic_made_meanwhile(node: Node, acks: int) -> None:
    topic = node.create_topic("t")
    node.ports.cluster = Meanwhile(node, lambda: void(node.replace_topic("t")))
    produced = produce(node, topic.id, acks)
    assert ErrorCode(produced.error_code) is ErrorCode.unknown_topic_id
    assert produced.leader_id == -1
    assert node.partition("t").log_end_offset == 0


def test_fetch_by_id_does_not_read_a_topic_made_meanwhile(node: Node) -> None:
    topic = node.create_topic("t")
    node.ports.cluster = Meanwhile(node, replaced_with_records(node))
    found = fetch(node, topic.id)
    assert ErrorCode(found.error_code) is ErrorCode.unknown_topic_id
    assert not found.records


def test_followers_fetch_by_id_counts_not_for_a_topic_made_meanwhile(node: Node) -> None:
    """It would be taken into the in-sync replicas of a topic that it does not have."""
    topic = node.create_topic("t", replicas=(BROKER, FOLLOWER), isr=(BROKER,))
    node.ports.cluster = Meanwhile(node, lambda: void(node.replace_topic("t")))
    found = fetch(node, topic.id, replica=FOLLOWER)
    assert ErrorCode(found.error_code) is ErrorCode.unknown_topic_id
    [follower] = node.partition("t").describe()["replication"]["followers"].values()
    assert follower["log_end_offset"] == -1


def test_waiting_fetch_by_id_does_not_read_a_topic_made_meanwhile(node: Node) -> None:
    topic = node.create_topic("t")
    results: list[FetchedPartition[memoryview]] = []
    waiting = threading.Thread(target=lambda: results.append(fetch(node, topic.id, max_wait_ms=10_000)))
    waiting.start()
    try:
        wait_until(lambda: node.delayed.waiting, 10.0, "the fetch waits")
        replaced_with_records(node)()
    finally:
        waiting.join(scaled(20.0))
    [found] = results
    assert ErrorCode(found.error_code) is ErrorCode.unknown_topic_id
    assert not found.records


def test_waiting_produce_by_id_is_not_acknowledged_by_another_topic(node: Node) -> None:
    topic = node.create_topic("t", replicas=(BROKER, FOLLOWER), isr=(BROKER, FOLLOWER))
    reply = node.answer(produce_request("t", BATCH, version=13, topic_id=topic.id, acks=-1)[4:])
    assert not isinstance(reply, bytes | None)
    node.replace_topic("t")
    append(node, OTHER)
    assert reply.wait(scaled(10.0))  # type: ignore[union-attr]
    data = reply.finish()  # type: ignore[union-attr]
    produced = parse_produce_response(13, data)[1].topics[0].partitions[0]
    assert ErrorCode(produced.error_code) is ErrorCode.not_leader_or_follower
    assert produced.leader_id == -1, "who leads the other topic is no hint"


def void(result: object) -> None:
    """For a callback that must answer nothing."""
