"""Fetch beside other replicas: to which one a consumer is sent (KIP-392), which follower is throttled (KIP-73)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from kit.node import BROKER, Node, sent
from kit.wire import fetch_request
from raylog.broker.config.replication import RACK_AWARE_SELECTOR
from raylog.coordination.metadata.model import BrokerInfo
from raylog.protocol.ids import BrokerEpoch, BrokerId, TimestampMs, TopicName
from raylog.protocol.records import Record, encode_batch
from raylog.protocol.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchTopic, parse_fetch_response

NOBODY = -1
VERSION = 15
RACKS = {2: "rack-2", 3: "rack-2", 4: "rack-4"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Broker 1, in rack-1, leads. Of the followers in rack-2, 3 has all and 2 lacks the last batch."""
    with Node(tmp_path, config={"replica.selector.class": RACK_AWARE_SELECTOR}) as node:
        node.others = [BrokerInfo(BrokerId(at), BrokerEpoch(1), (), rack=rack) for at, rack in RACKS.items()]
        node.create_topic("t", replicas=[BROKER, *RACKS])
        append(node, b"one")
        append(node, b"two")
        for follower, end in {2: 1, 3: 2, 4: 2}.items():
            fetch(node, end, follower=follower)
        yield node


def append(node: Node, value: bytes) -> None:
    batch = bytearray(encode_batch([Record(value)]))
    node.partition("t").append(memoryview(batch), now_ms=TimestampMs(1))


def fetch(node: Node, offset: int, *, follower: int = -1, rack: str = "") -> FetchedPartition[memoryview]:
    topic = FetchTopic("", node.table.state().topics[TopicName("t")].id, [FetchPartition(0, offset, max_bytes=1 << 20)])
    asked = FetchRequest(0, 0, replica_id=follower, replica_epoch=1, rack_id=rack, topics=[topic])
    data = sent(node.answer(fetch_request(VERSION, asked)[4:]))
    [fetched] = parse_fetch_response(VERSION, data)[1].topics[0].partitions
    return fetched


@pytest.mark.parametrize(
    ("rack", "nearest"),
    [
        ("rack-2", 3),  # it has most
        ("rack-4", 4),
        ("rack-1", NOBODY),  # the leader is there
        ("rack-9", NOBODY),  # nobody is there
        ("", NOBODY),
    ],
)
def test_consumer_is_sent_to_the_replica_of_its_rack(node: Node, rack: str, nearest: int) -> None:
    fetched = fetch(node, 0, rack=rack)
    assert fetched.error_code == 0
    assert fetched.preferred_read_replica == nearest
    assert bool(fetched.records) == (nearest == NOBODY), "a consumer that is sent away gets no records"


def test_of_equal_replicas_in_a_rack_the_first_is_nearest(node: Node) -> None:
    fetch(node, 2, follower=2)
    assert fetch(node, 0, rack="rack-2").preferred_read_replica == 2


@pytest.mark.parametrize(
    ("throttled", "follower", "is_held_back"),
    [
        ("0:1", 3, True),
        ("0:1", 2, False),  # it is in sync
        ("0:2", 3, False),  # of another broker's replica
        ("", 3, False),
    ],
)
def test_only_followers_out_of_sync_are_throttled(
    tmp_path: Path, throttled: str, follower: int, is_held_back: bool
) -> None:
    with Node(tmp_path) as node:
        node.broker_configs = {str(BROKER): {"leader.replication.throttled.rate": "1"}}
        node.others = [BrokerInfo(BrokerId(at), BrokerEpoch(1), ()) for at in (2, 3)]
        config = {"leader.replication.throttled.replicas": throttled} if throttled else {}
        node.create_topic("t", replicas=[BROKER, 2, 3], isr=[BROKER, 2], config=config)
        append(node, b"one")
        assert fetch(node, 0, follower=follower).records
        assert bool(fetch(node, 0, follower=follower).records) == (not is_held_back)


def test_only_a_debugging_consumer_reads_from_a_follower(tmp_path: Path) -> None:
    """kafka-replica-verification names itself -2."""
    with Node(tmp_path) as node:
        node.create_topic("t")
        append(node, b"one")
        node.others = [BrokerInfo(BrokerId(2), BrokerEpoch(1), ())]
        node.create_topic("t", replicas=[BROKER, 2], leader=2, leader_epoch=1)
        assert fetch(node, 0, follower=-1).error_code == ErrorCode.not_leader_or_follower
        assert fetch(node, 0, follower=-2).records
