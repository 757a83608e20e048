"""Nodes and values: as Kafka wrote them in its ZooKeeper era, and unreadable ones named."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from raylog.coordination.metadata import paths, producer_ids
from raylog.coordination.metadata.model import BrokerInfo, ClusterState, Endpoint, PartitionState, TopicState
from raylog.protocol.ids import (
    NO_TOPIC_ID,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionIndex,
    ProducerId,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)

NOW = TimestampMs(1_700_000_000_000)
ONE = BrokerId(1)
TP = TopicPartition(TopicName("flights"), PartitionIndex(3))


def test_nodes_stand_where_kafka_put_them() -> None:
    assert paths.broker(ONE) == "/brokers/ids/1"
    assert paths.partition_state(TP) == "/brokers/topics/flights/partitions/3/state"
    assert paths.topic_config(TP.topic) == "/config/topics/flights"
    assert paths.delete_topic(TP.topic) == "/admin/delete_topics/flights"


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (paths.encode_controller(ONE, NOW), {"version": 1, "brokerid": 1, "timestamp": "1700000000000"}),
        (paths.encode_cluster_id("abc"), {"version": "1", "id": "abc"}),
        (paths.encode_config({"a": "b"}), {"version": 1, "config": {"a": "b"}}),
        (paths.encode_config_change("topics/t"), {"version": 2, "entity_path": "topics/t"}),
        (
            producer_ids.encode_block(producer_ids.ProducerIdBlock(ONE, ProducerId(1000), ProducerId(1999))),
            {"version": 1, "broker": 1, "block_start": "1000", "block_end": "1999"},
        ),
        (
            paths.encode_topic(paths.TopicAssignment(TopicId(UUID(int=1)), ((ONE,), (BrokerId(2),)))),
            {
                "version": 3,
                "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ",
                "partitions": {"0": [1], "1": [2]},
                "adding_replicas": {},
                "removing_replicas": {},
            },
        ),
        (
            paths.encode_partition_state(PartitionState((ONE,), ONE, LeaderEpoch(4), (ONE,), ControllerEpoch(7))),
            {"controller_epoch": 7, "leader": 1, "version": 1, "leader_epoch": 4, "isr": [1]},
        ),
    ],
    ids=lambda value: None if isinstance(value, bytes) else next(reversed(value)),
)
def test_values_are_kafkas_json(encoded: bytes, expected: dict[str, Any]) -> None:
    assert json.loads(encoded) == expected


def test_a_registration_has_kafkas_fields_and_survives() -> None:
    endpoints = (Endpoint("PLAINTEXT", "h", 9092), Endpoint("INSIDE", "::1", 9093, "SSL"))
    info = BrokerInfo(ONE, BrokerEpoch(4), endpoints, "r", "node", "actor", (UUID(int=1),), clean_stop=True)
    value = json.loads(paths.encode_broker(info, NOW))
    assert (value["version"], value["host"], value["port"], value["rack"]) == (5, "h", 9092, "r")
    assert value["endpoints"] == ["PLAINTEXT://h:9092", "INSIDE://[::1]:9093"]
    assert value["listener_security_protocol_map"] == {"PLAINTEXT": "PLAINTEXT", "INSIDE": "SSL"}
    data, extra = paths.encode_broker(info, NOW), paths.encode_raylog_broker(info)
    assert paths.decode_broker(ONE, data, extra, BrokerEpoch(4)) == info


def test_what_old_tools_wrote_is_read() -> None:
    assignment = paths.decode_topic(TP.topic, b'{"version":1,"partitions":{"1":[2],"0":[1]}}')
    assert assignment == paths.TopicAssignment(NO_TOPIC_ID, ((ONE,), (BrokerId(2),)), {}, {})
    broker = paths.decode_broker(ONE, b'{"version":4,"endpoints":["PLAINTEXT://h:1"]}', None, BrokerEpoch(0))
    assert broker.endpoints == (Endpoint("PLAINTEXT", "h", 1),)
    assert broker.rack is None


def test_other_values_survive() -> None:
    state = PartitionState((ONE,), ONE, LeaderEpoch(4), (ONE,), ControllerEpoch(7), version=9)
    assert paths.decode_partition_state(TP, paths.encode_partition_state(state), 9, (ONE,)) == state
    block = producer_ids.ProducerIdBlock(ONE, ProducerId(0), ProducerId(999))
    assert producer_ids.decode_block(producer_ids.encode_block(block)) == block
    assert paths.decode_config("/x", paths.encode_config({"a": "b"})) == {"a": "b"}
    assert paths.decode_config_change("/x", paths.encode_config_change("topics/t")) == "topics/t"
    assert paths.decode_controller(paths.encode_controller(ONE, NOW)) == 1
    topic_id = UUID("12345678-1234-5678-1234-567812345678")
    assert paths.decode_topic_id(paths.encode_topic_id(topic_id)) == topic_id


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"x"', b"{}", b'{"partitions": 3}', b"\xff", b'{"version": 1}'])
@pytest.mark.parametrize(
    ("decode", "node"),
    [
        (paths.decode_cluster_id, "/cluster/id"),
        (paths.decode_controller, "/controller"),
        (paths.decode_controller_epoch, "/controller_epoch"),
        (producer_ids.decode_block, "/latest_producer_id_block"),
        (lambda data: paths.decode_topic(TP.topic, data), "/brokers/topics/flights"),
        (lambda data: paths.decode_broker(ONE, data, None, BrokerEpoch(0)), "/brokers/ids/1"),
        (lambda data: paths.decode_partition_state(TP, data, 0, (ONE,)), "/brokers/topics/flights/partitions/3/state"),
        (lambda data: paths.decode_config("/config/x", data), "/config/x"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_read_is_named(decode: Callable[[bytes], object], node: str, data: bytes) -> None:
    with pytest.raises(paths.CorruptMetadata, match=node):
        decode(data)


def test_partitions_with_gaps_are_refused() -> None:
    with pytest.raises(paths.CorruptMetadata, match="without gaps"):
        paths.decode_topic(TP.topic, b'{"partitions":{"0":[1],"2":[1]}}')


def test_the_cluster_answers_by_name_id_and_partition() -> None:
    online, offline = PartitionState((ONE,), ONE, isr=(ONE,)), PartitionState((ONE,))
    topic = TopicState(TopicName("flights"), TopicId(UUID(int=1)), (online, offline))
    state = ClusterState().with_topics(topic)
    assert state.topic(topic.name) is state.topic_by_id(topic.id) is topic
    assert state.leader_of(TopicPartition(topic.name, PartitionIndex(0))) == 1
    for name, index in (("flights", 1), ("flights", 2), ("flights", -1), ("other", 0)):
        assert state.leader_of(TopicPartition(TopicName(name), PartitionIndex(index))) == -1
    assert [str(tp) for tp, _ in state.partitions()] == ["flights-0", "flights-1"]
    changed = state.with_topics(topic.with_partition(1, online))
    assert changed.leader_of(TopicPartition(topic.name, PartitionIndex(1))) == 1
    assert state.without_topics(topic.name) == ClusterState()


def test_endpoints_are_found_by_listener() -> None:
    endpoints = (Endpoint("A", "h", 1), Endpoint("B", "h", 2))
    info = BrokerInfo(ONE, BrokerEpoch(0), endpoints)
    assert info.endpoint() is endpoints[0]
    assert info.endpoint("B") is endpoints[1]
    assert info.endpoint("C") is None
