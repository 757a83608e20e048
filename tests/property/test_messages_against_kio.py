"""Our readers and hand-written codecs against kio's writers, which are generated from Kafka's schemas."""

from __future__ import annotations

from datetime import datetime
from io import BytesIO
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import schema_name_map
from kio.serial import entity_writer

from kit.kio_entities import entities
from raylog.protocol.batches.transactions import AbortedTransaction
from raylog.protocol.wire import fetch, produce
from raylog.protocol.wire.messages import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    parse_request_header,
)
from raylog.protocol.wire.primitives import ZERO_UUID, NodeEndpoint

SERVED = {
    "list_offsets": 2, "metadata": 3, "find_coordinator": 10, "api_versions": 18, "create_topics": 19,
    "delete_topics": 20, "init_producer_id": 22, "offset_for_leader_epoch": 23, "describe_configs": 32,
    "describe_cluster": 60, "delete_records": 21, "alter_configs": 33, "describe_log_dirs": 35, "create_partitions": 37,
    "elect_leaders": 43, "alter_partition_reassignments": 45, "list_partition_reassignments": 46,
    "incremental_alter_configs": 44, "describe_producers": 61, "describe_topic_partitions": 75,
    "join_group": 11, "offset_commit": 8, "offset_fetch": 9, "consumer_group_heartbeat": 68,
}  # fmt: skip
a_few = settings(max_examples=max(settings().max_examples // 10, 1))  # there are many kinds of messages
some = settings(max_examples=max(settings().max_examples // 3, 1))
MESSAGES = [(name, key, version) for name, key in SERVED.items() for version in sorted(schema_name_map[name])]
PRODUCE = range(produce.MIN_VERSION, produce.MAX_VERSION + 1)
FETCH = range(fetch.MIN_VERSION, fetch.MAX_VERSION + 1)


def written(entity: Any) -> bytes:
    buffer = BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@pytest.mark.parametrize(("name", "key", "version"), MESSAGES)
@a_few
@given(data=st.data())
def test_requests_and_responses_come_back(name: str, key: int, version: int, data: st.DataObject) -> None:
    request = data.draw(entities(load_request_schema(key, version)))
    frame = encode_request(request, 5, "client")[4:]
    header = parse_request_header(frame)
    assert header[:4] == (key, version, 5, "client")
    assert decode_request(key, version, frame[header.body_pos :]) == request
    response = data.draw(entities(load_response_schema(key, version)))
    assert decode_response(key, version, encode_response(key, version, 6, response)) == (6, response)


def milliseconds(time: datetime | None) -> int:
    return -1 if time is None else round(time.timestamp() * 1000)


def topic_of(data: Any) -> tuple[str, UUID]:
    """Its name, which Fetch calls topic, or its id."""
    if hasattr(data, "topic_id"):
        return "", data.topic_id or ZERO_UUID
    return (data.name if hasattr(data, "name") else data.topic), ZERO_UUID


def endpoints_of(data: Any) -> list[NodeEndpoint]:
    nodes = getattr(data, "node_endpoints", ())
    return [NodeEndpoint(node.node_id, node.host, node.port, node.rack) for node in nodes]


def leader_of(data: Any) -> tuple[int, int]:
    if not hasattr(data, "current_leader"):
        return -1, -1
    return data.current_leader.leader_id, data.current_leader.leader_epoch


def our_produce_request(data: Any) -> produce.ProduceRequest:
    topics = [
        produce.TopicRecords(
            *topic_of(topic), [produce.PartitionRecords(each.index, each.records) for each in topic.partition_data]
        )
        for topic in data.topic_data
    ]
    return produce.ProduceRequest(data.transactional_id, data.acks, round(data.timeout.total_seconds() * 1000), topics)


def our_produce_response(data: Any) -> produce.ProduceResponse:
    def partition(each: Any) -> produce.ProducedPartition:
        return produce.ProducedPartition(
            each.index,
            each.error_code,
            each.base_offset,
            milliseconds(each.log_append_time),
            getattr(each, "log_start_offset", -1),
            [
                produce.RecordError(error.batch_index, error.batch_index_error_message)
                for error in getattr(each, "record_errors", ())
            ],
            getattr(each, "error_message", None),
            *leader_of(each),
        )

    topics = [
        produce.ProducedTopic(*topic_of(topic), [partition(each) for each in topic.partition_responses])
        for topic in data.responses
    ]
    return produce.ProduceResponse(topics, round(data.throttle_time.total_seconds() * 1000), endpoints_of(data))


def our_fetch_request(data: Any) -> fetch.FetchRequest:
    def partition(each: Any) -> fetch.FetchPartition:
        return fetch.FetchPartition(
            each.partition,
            each.fetch_offset,
            each.partition_max_bytes,
            getattr(each, "current_leader_epoch", -1),
            getattr(each, "last_fetched_epoch", -1),
            getattr(each, "log_start_offset", -1),
            getattr(each, "replica_directory_id", None) or ZERO_UUID,
            getattr(each, "high_watermark", fetch.MAX_INT64),
        )

    state = getattr(data, "replica_state", None)
    return fetch.FetchRequest(
        round(data.max_wait.total_seconds() * 1000),
        data.min_bytes,
        [fetch.FetchTopic(*topic_of(topic), [partition(each) for each in topic.partitions]) for topic in data.topics],
        data.max_bytes,
        data.isolation_level,
        getattr(data, "session_id", 0),
        getattr(data, "session_epoch", -1),
        [
            fetch.ForgottenTopic(*topic_of(topic), list(topic.partitions))
            for topic in getattr(data, "forgotten_topics_data", ())
        ],
        getattr(data, "rack_id", ""),
        state.replica_id if state else data.replica_id,
        state.replica_epoch if state else -1,
        getattr(data, "cluster_id", None),
    )


def our_fetch_response(data: Any) -> fetch.FetchResponse[bytes]:
    def partition(each: Any) -> fetch.FetchedPartition[bytes]:
        aborted = each.aborted_transactions
        diverging, snapshot = getattr(each, "diverging_epoch", None), getattr(each, "snapshot_id", None)
        return fetch.FetchedPartition(
            each.partition_index,
            each.error_code,
            each.high_watermark,
            each.last_stable_offset,
            getattr(each, "log_start_offset", -1),
            each.records or b"",
            None if aborted is None else [AbortedTransaction(one.producer_id, one.first_offset) for one in aborted],
            getattr(each, "preferred_read_replica", -1),
            fetch.EpochEndOffset(diverging.epoch, diverging.end_offset) if diverging else fetch.NO_EPOCH_END,
            *leader_of(each),
            fetch.EpochEndOffset(snapshot.epoch, snapshot.end_offset) if snapshot else fetch.NO_EPOCH_END,
        )

    topics = [
        fetch.FetchedTopic(*topic_of(topic), [partition(each) for each in topic.partitions]) for topic in data.responses
    ]
    return fetch.FetchResponse(
        topics,
        round(data.throttle_time.total_seconds() * 1000),
        getattr(data, "error_code", 0),
        getattr(data, "session_id", 0),
        endpoints_of(data),
    )


@pytest.mark.parametrize("version", PRODUCE)
@some
@given(data=st.data())
def test_produce_requests_are_kio_s(version: int, data: st.DataObject) -> None:
    entity = data.draw(entities(load_request_schema(0, version)))
    ours = our_produce_request(entity)
    assert produce.parse_produce_request(version, written(entity)) == ours
    frame = b"".join(produce.encode_produce_request(version, ours, correlation_id=3, client_id="c"))
    assert frame == encode_request(entity, 3, "c")


@pytest.mark.parametrize("version", PRODUCE)
@some
@given(data=st.data())
def test_produce_responses_are_kio_s(version: int, data: st.DataObject) -> None:
    entity = data.draw(entities(load_response_schema(0, version)))
    ours = our_produce_response(entity)
    frame = encode_response(0, version, 3, entity)
    assert produce.parse_produce_response(version, frame) == (3, ours)
    assert produce.encode_produce_response(version, 3, ours) == frame


@pytest.mark.parametrize("version", FETCH)
@some
@given(data=st.data())
def test_fetch_requests_are_kio_s(version: int, data: st.DataObject) -> None:
    entity = data.draw(entities(load_request_schema(1, version)))
    ours = our_fetch_request(entity)
    assert fetch.parse_fetch_request(version, written(entity)) == ours
    assert fetch.encode_fetch_request(version, ours, correlation_id=3, client_id=None) == encode_request(
        entity, 3, None
    )


@pytest.mark.parametrize("version", FETCH)
@some
@given(data=st.data())
def test_fetch_responses_are_kio_s(version: int, data: st.DataObject) -> None:
    entity = data.draw(entities(load_response_schema(1, version)))
    ours = our_fetch_response(entity)
    frame = encode_response(1, version, 3, entity)
    correlation_id, parsed = fetch.parse_fetch_response(version, frame)
    assert correlation_id == 3
    assert with_empty_for_null(parsed) == ours
    if all(each.records is not None for topic in entity.responses for each in topic.partitions):
        assert b"".join(fetch.encode_fetch_response(version, 3, ours)) == frame


def with_empty_for_null(response: fetch.FetchResponse[memoryview]) -> fetch.FetchResponse[bytes]:
    def partition(data: fetch.FetchedPartition[memoryview]) -> fetch.FetchedPartition[bytes]:
        return fetch.FetchedPartition[bytes](**{**data._asdict(), "records": bytes(data.records or b"")})

    topics = [
        fetch.FetchedTopic(topic.name, topic.topic_id, [partition(each) for each in topic.partitions])
        for topic in response.topics
    ]
    return fetch.FetchResponse(topics, *response[1:])
