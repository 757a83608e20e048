"""The cold APIs, every version, without sockets: what goes in, what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode

from kit.node import BROKER, Node
from kit.node_calls import ask
from kit.wire import request
from raylog.broker.handlers import TABLE
from raylog.broker.handlers.context import CloseConnection, Connection
from raylog.protocol.errors import InvalidRequest
from raylog.protocol.ids import TimestampMs
from raylog.protocol.records import Record, encode_batch
from raylog.protocol.wire.messages import decode_response

VERSIONS = {row.name: range(row.min_version, row.max_version + 1) for row in TABLE}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, config={"num.partitions": "3"}) as node:
        yield node


def append(node: Node, topic: str, *timestamps: int) -> None:
    records = [Record(b"v", timestamp=timestamp) for timestamp in timestamps]
    batch = memoryview(bytearray(encode_batch(records)))
    node.partition(topic).append(batch, now_ms=TimestampMs(1_000_000))


# --- ApiVersions
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS["ApiVersions"])
def test_api_versions_offers_the_table(node: Node, version: int) -> None:
    response = ask(node, "ApiVersions", version, client_software_name="test-client", client_software_version="1.0")
    assert response.error_code is ErrorCode.none
    offered = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    assert offered[0] == (0, 13)
    assert offered[18] == (0, 4)
    assert len(offered) == len(TABLE)


def test_api_versions_too_new_gets_v0_with_its_own_range(node: Node) -> None:
    frame = bytearray(request(18, 4, client_software_name="a", client_software_version="1")[4:])
    frame[2:4] = (99).to_bytes(2, "big")
    reply = node.answer(bytes(frame))
    assert isinstance(reply, bytes)
    correlation_id, decoded = decode_response(18, 0, reply)
    response: Any = decoded
    assert correlation_id == 7
    assert response.error_code is ErrorCode.unsupported_version
    [only] = response.api_keys
    assert (only.api_key, only.min_version, only.max_version) == (18, 0, 4)


def test_api_versions_wants_a_proper_software_name(node: Node) -> None:
    response = ask(node, "ApiVersions", 3, client_software_name="no spaces please", client_software_version="1")
    assert response.error_code is ErrorCode.invalid_request


# --- Metadata
# ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS["Metadata"])
def test_metadata_of_all_topics(node: Node, version: int) -> None:
    topic = node.create_topic("t", partitions=2, leader_epoch=5)
    response = ask(node, "Metadata", version, topics=() if version == 0 else None)
    [broker] = response.brokers
    assert (broker.node_id, broker.host) == (BROKER, "127.0.0.1")
    [described] = response.topics
    assert (described.name, described.error_code) == ("t", ErrorCode.none)
    assert [partition.partition_index for partition in described.partitions] == [0, 1]
    assert {partition.leader_id for partition in described.partitions} == {BROKER}
    if version >= 1:
        assert response.controller_id == BROKER
        assert broker.rack == "rack-1"
    if version >= 2:
        assert response.cluster_id == "test-cluster"
    if version >= 7:
        assert {partition.leader_epoch for partition in described.partitions} == {5}
    if version >= 10:
        assert described.topic_id == topic.id


@pytest.mark.parametrize("version", VERSIONS["Metadata"])
def test_metadata_of_topics_that_are_not_there(node: Node, version: int) -> None:
    response = ask(
        node,
        "Metadata",
        version,
        topics=[{"name": "new", "topic_id": None}, {"name": "no/good", "topic_id": None}],
        allow_auto_topic_creation=True,
    )
    assert [topic.error_code for topic in response.topics] == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_topic_exception,
    ]
    assert node.auto_created == ["new"]


def test_metadata_creates_nothing_that_the_client_forbids(node: Node) -> None:
    ask(node, "Metadata", 4, topics=[{"name": "new"}], allow_auto_topic_creation=False)
    assert node.auto_created == []


def test_metadata_empty_list_is_none_from_version_1_on(node: Node) -> None:
    node.create_topic("t")
    assert ask(node, "Metadata", 1, topics=()).topics == ()


def test_metadata_by_id(node: Node) -> None:
    topic = node.create_topic("t")
    stranger = uuid4()
    response = ask(
        node,
        "Metadata",
        12,
        topics=[{"name": None, "topic_id": topic.id}, {"name": None, "topic_id": stranger}],
    )
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("t", ErrorCode.none),
        (None, ErrorCode.unknown_topic_id),
    ]
    assert response.topics[1].topic_id == stranger


def test_metadata_of_an_offline_partition(node: Node) -> None:
    node.create_topic("t", leader=-1)
    [topic] = ask(node, "Metadata", 9, topics=[{"name": "t"}]).topics
    assert topic.partitions[0].error_code is ErrorCode.leader_not_available
    assert topic.partitions[0].leader_id == -1


def test_metadata_tells_only_endpoints_of_the_listener(node: Node) -> None:
    node.create_topic("t")
    response = ask(node, "Metadata", 9, listener="ELSEWHERE", topics=[{"name": "t"}])
    assert response.brokers == ()
    assert response.topics[0].partitions[0].error_code is ErrorCode.listener_not_found


# --- ListOffsets, OffsetForLeaderEpoch
# --------------------------------------------------------------------------


def list_offset(node: Node, version: int, timestamp: int, **values: Any) -> Any:
    part = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1, **values}
    response = ask(node, "ListOffsets", version, replica_id=-1, topics=[{"name": "t", "partitions": [part]}])
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("version", VERSIONS["ListOffsets"])
def test_list_offsets_at_both_ends_and_in_between(node: Node, version: int) -> None:
    node.create_topic("t")
    append(node, "t", 100, 200, 300)
    append(node, "t", 400)
    assert list_offset(node, version, -1).offset == 4
    assert list_offset(node, version, -2).offset == 0
    found = list_offset(node, version, 250)
    assert (found.offset, found.timestamp) == (2, 300)
    late = list_offset(node, version, 401)
    assert (late.offset, late.timestamp, late.error_code) == (-1, -1, ErrorCode.none)


@pytest.mark.parametrize("version", VERSIONS["ListOffsets"])
@pytest.mark.parametrize(("timestamp", "since", "offset"), [(-3, 7, 1), (-4, 8, 0), (-5, 9, -1), (-6, 11, -1)])
def test_list_offsets_special_timestamps(node: Node, version: int, timestamp: int, since: int, offset: int) -> None:
    node.create_topic("t")
    append(node, "t", 100, 300, 200)
    found = list_offset(node, version, timestamp)
    if version < since:
        assert found.error_code is ErrorCode.unsupported_version
    else:
        assert (found.error_code, found.offset) == (ErrorCode.none, offset)


@pytest.mark.parametrize("version", VERSIONS["ListOffsets"])
def test_a_new_leader_tells_no_end_below_one_that_was_told_before(node: Node, version: int) -> None:
    """The leader before it may have known that all of the log is committed; it knows so of nothing yet (KIP-207)."""
    node.create_topic("t", replicas=(BROKER, 2))
    append(node, "t", 100, 200)
    assert list_offset(node, version, -1).offset == 0
    node.create_topic("t", replicas=(BROKER, 2), leader_epoch=1)
    not_yet = ErrorCode.offset_not_available if version >= 5 else ErrorCode.leader_not_available
    # The end, a time whose record is not known to be committed, and the highest one.
    for timestamp in (-1, 150, -3) if version >= 7 else (-1, 150):
        answer = list_offset(node, version, timestamp)
        assert (answer.error_code, answer.offset) == (not_yet, -1)
    assert list_offset(node, version, -2).error_code is ErrorCode.none
    node.create_topic("t", replicas=(BROKER, 2), leader_epoch=1, isr=(BROKER,))
    assert list_offset(node, version, -1).offset == 2
    assert list_offset(node, version, 150).offset == 1
    assert version < 7 or list_offset(node, version, -3).offset == 1


@pytest.mark.parametrize("version", [v for v in VERSIONS["ListOffsets"] if v >= 4])
def test_list_offsets_names_the_epoch_of_the_record(node: Node, version: int) -> None:
    """After a leader moved, the earliest record is of the epoch it was written in; the end is of the current one."""
    node.create_topic("t")
    append(node, "t", 100, 200)
    node.create_topic("t", leader_epoch=1)
    append(node, "t", 300)
    epochs = {timestamp: list_offset(node, version, timestamp).leader_epoch for timestamp in (-1, -2, 150, 250)}
    assert epochs == {-1: 1, -2: 0, 150: 0, 250: 1}


def test_list_offsets_errors_are_per_partition(node: Node) -> None:
    node.create_topic("t", leader_epoch=3)
    node.create_topic("elsewhere", leader=2)
    part = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    response = ask(
        node,
        "ListOffsets",
        6,
        topics=[
            {"name": "t", "partitions": [{**part, "current_leader_epoch": 2}]},
            {"name": "unknown", "partitions": [part]},
            {"name": "elsewhere", "partitions": [part]},
        ],
    )
    assert [topic.partitions[0].error_code for topic in response.topics] == [
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
    ]
    assert list_offset(node, 6, -1, current_leader_epoch=4).error_code is ErrorCode.unknown_leader_epoch
    assert list_offset(node, 6, -1, current_leader_epoch=3).error_code is ErrorCode.none


def test_list_offsets_twice_is_an_invalid_request(node: Node) -> None:
    node.create_topic("t")
    part = {"partition_index": 0, "timestamp": -1}
    topic = {"name": "t", "partitions": [part]}
    for topics in ([{"name": "t", "partitions": [part, part]}], [topic, {"name": "u", "partitions": []}, topic]):
        [found] = ask(node, "ListOffsets", 6, topics=topics).topics
        [partition] = found.partitions
        assert (found.name, partition.error_code) == ("t", ErrorCode.invalid_request)


@pytest.mark.parametrize("version", VERSIONS["ListOffsets"][1:])
def test_list_offsets_with_an_unknown_isolation_level_fails(node: Node, version: int) -> None:
    node.create_topic("t")
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    [topic] = ask(node, "ListOffsets", version, isolation_level=2, topics=topics).topics
    assert [part.error_code for part in topic.partitions] == [ErrorCode.unknown_server_error]


def test_list_offsets_without_lease_is_refused(node: Node) -> None:
    node.create_topic("t")
    node.lease_held = False
    assert list_offset(node, 6, -1).error_code is ErrorCode.not_leader_or_follower


def test_epoch_without_lease_is_not_looked_up(node: Node) -> None:
    node.create_topic("t")
    node.lease_held = False
    topics = [{"topic": "t", "partitions": [{"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}]}]
    [topic] = ask(node, "OffsetForLeaderEpoch", 3, replica_id=-1, topics=topics).topics
    assert topic.partitions[0].error_code is ErrorCode.not_leader_or_follower


@pytest.mark.parametrize("version", VERSIONS["OffsetForLeaderEpoch"])
def test_offset_for_leader_epoch(node: Node, version: int) -> None:
    node.create_topic("t", leader_epoch=1)
    append(node, "t", 1, 2)
    node.create_topic("t", leader_epoch=4)
    append(node, "t", 3)

    def end(epoch: int) -> tuple[Any, int, int]:
        part = {"partition": 0, "leader_epoch": epoch, "current_leader_epoch": 4}
        topics = [{"topic": "t", "partitions": [part]}]
        [topic] = ask(node, "OffsetForLeaderEpoch", version, replica_id=-1, topics=topics).topics
        found = topic.partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    assert end(1) == (ErrorCode.none, 1, 2)
    assert end(3) == (ErrorCode.none, 1, 2)
    assert end(4) == (ErrorCode.none, 4, 3)


# --- topics
# -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS["CreateTopics"])
def test_create_topics(node: Node, version: int) -> None:
    topics = [
        {
            "name": "t",
            "num_partitions": 2,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": "retention.ms", "value": "5"}],
        }
    ]
    [created] = ask(node, "CreateTopics", version, topics=topics).topics
    assert (created.name, created.error_code) == ("t", ErrorCode.none)
    state = node.table.state().topics
    [topic] = state.values()
    assert len(topic.partitions) == 2
    assert dict(topic.configs) == {"retention.ms": "5"}
    if version >= 5:
        assert (created.num_partitions, created.replication_factor) == (2, 1)
        retention = next(config for config in created.configs if config.name == "retention.ms")
        assert (retention.value, retention.config_source) == ("5", 1)
    if version >= 7:
        assert created.topic_id == topic.id


@pytest.mark.parametrize(("partitions", "factor", "fits"), [(-1, -1, True), (1, -1, False), (-1, 1, False)])
def test_create_topics_by_hand_names_neither_number(node: Node, partitions: int, factor: int, fits: bool) -> None:
    topic = {
        "name": "t",
        "num_partitions": partitions,
        "replication_factor": factor,
        "configs": [],
        "assignments": [{"partition_index": index, "broker_ids": [1]} for index in (0, 1)],
    }
    [created] = ask(node, "CreateTopics", 5, topics=[topic]).topics
    assert created.error_code is (ErrorCode.none if fits else ErrorCode.invalid_request)
    assert list(node.table.state().topics) == (["t"] if fits else [])


def test_create_topics_bad_requests_are_per_topic(node: Node) -> None:
    topic = {"num_partitions": 1, "replication_factor": 1, "configs": []}
    twice = {**topic, "name": "twice", "assignments": []}
    by_hand = {
        **topic,
        "name": "by-hand",
        "assignments": [{"partition_index": 0, "broker_ids": [1]}],
    }
    doubled = {
        "name": "doubled",
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],
        "assignments": [{"partition_index": 0, "broker_ids": [1]}] * 2,
    }
    good = {**topic, "name": "good", "assignments": []}
    response = ask(node, "CreateTopics", 5, topics=[twice, twice, by_hand, doubled, good])
    assert {topic.name: topic.error_code for topic in response.topics} == {
        "twice": ErrorCode.invalid_request,
        "by-hand": ErrorCode.invalid_request,
        "doubled": ErrorCode.invalid_replica_assignment,
        "good": ErrorCode.none,
    }
    assert list(node.table.state().topics) == ["good"]


@pytest.mark.parametrize("version", VERSIONS["CreateTopics"])
def test_create_topics_elsewhere_than_the_controller(node: Node, version: int) -> None:
    node.is_controller = False
    topics = [{"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}]
    [created] = ask(node, "CreateTopics", version, topics=topics).topics
    assert created.error_code is ErrorCode.not_controller


@pytest.mark.parametrize("version", VERSIONS["DeleteTopics"])
def test_delete_topics(node: Node, version: int) -> None:
    for name in ("gone", "kept"):
        node.create_topic(name)
    response = ask(
        node,
        "DeleteTopics",
        version,
        topic_names=["gone", "unknown"],
        topics=[{"name": "gone"}, {"name": "unknown"}],
    )
    assert [(topic.name, topic.error_code) for topic in response.responses] == [
        ("gone", ErrorCode.none),
        ("unknown", ErrorCode.unknown_topic_or_partition),
    ]
    assert list(node.table.state().topics) == ["kept"]


def test_delete_topics_by_id(node: Node) -> None:
    topic = node.create_topic("t")
    response = ask(node, "DeleteTopics", 6, topics=[{"topic_id": topic.id}, {"topic_id": UUID(int=5)}])
    assert [(topic.name, topic.error_code) for topic in response.responses] == [
        ("t", ErrorCode.none),
        (None, ErrorCode.unknown_topic_id),
    ]


@pytest.mark.parametrize("version", VERSIONS["DeleteTopics"])
def test_delete_topics_elsewhere_than_the_controller(node: Node, version: int) -> None:
    node.create_topic("t")
    node.is_controller = False
    response = ask(node, "DeleteTopics", version, topic_names=["t"], topics=[{"name": "t"}])
    assert response.responses[0].error_code is ErrorCode.not_controller


# --- the rest
# ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS["InitProducerId"])
def test_init_producer_id(node: Node, version: int) -> None:
    first = ask(node, "InitProducerId", version, transactional_id=None)
    second = ask(node, "InitProducerId", version, transactional_id=None)
    assert first.error_code is ErrorCode.none
    assert first.producer_epoch == 0
    assert first.producer_id != second.producer_id


@pytest.mark.parametrize("version", VERSIONS["InitProducerId"])
def test_init_producer_id_knows_no_transactions(node: Node, version: int) -> None:
    response = ask(node, "InitProducerId", version, transactional_id="mine")
    assert response.error_code is ErrorCode.transactional_id_authorization_failed


@pytest.mark.parametrize("version", VERSIONS["InitProducerId"])
@pytest.mark.parametrize(
    ("values", "since"),
    [
        ({"transactional_id": ""}, 0),
        ({"producer_id": 7}, 3),
        ({"producer_epoch": 0}, 3),
        ({"producer_id": -2, "transactional_id": "mine"}, 3),
    ],
)
def test_init_producer_id_wants_an_id_with_its_epoch(
    node: Node, version: int, values: dict[str, Any], since: int
) -> None:
    asked = {"transactional_id": None, "producer_id": -1, "producer_epoch": -1, **values}
    code = ask(node, "InitProducerId", version, **asked).error_code
    assert (code is ErrorCode.invalid_request) == (version >= since)


@pytest.mark.parametrize("version", VERSIONS["InitProducerId"][3:])
def test_init_producer_id_gives_a_new_one_to_who_names_one(node: Node, version: int) -> None:
    asked = ask(node, "InitProducerId", version, transactional_id=None, producer_id=7, producer_epoch=3)
    assert (asked.error_code, asked.producer_epoch) == (ErrorCode.none, 0)


@pytest.mark.parametrize("version", VERSIONS["FindCoordinator"][4:])
def test_find_coordinator_answers_a_key_as_often_as_it_is_named(node: Node, version: int) -> None:
    found = ask(node, "FindCoordinator", version, key_type=0, coordinator_keys=["g", "h", "g"]).coordinators
    assert [each.key for each in found] == ["g", "h", "g"]


@pytest.mark.parametrize("version", VERSIONS["FindCoordinator"])
def test_find_coordinator_of_groups(node: Node, version: int) -> None:
    response = ask(node, "FindCoordinator", version, key="g", key_type=0, coordinator_keys=["g", ""])
    answers = response.coordinators if version >= 4 else [response]
    assert (answers[0].error_code, answers[0].node_id, answers[0].port) == (ErrorCode.none, BROKER, 9092)
    assert {answer.error_code for answer in answers[1:]} <= {ErrorCode.invalid_group_id}


@pytest.mark.parametrize("version", VERSIONS["FindCoordinator"][1:])
def test_find_coordinator_knows_no_transactions(node: Node, version: int) -> None:
    response = ask(node, "FindCoordinator", version, key="t", key_type=1, coordinator_keys=["t"])
    answers = response.coordinators if version >= 4 else [response]
    assert [(each.error_code, each.node_id) for each in answers] == [
        (ErrorCode.transactional_id_authorization_failed, -1)
    ]


@pytest.mark.parametrize("version", VERSIONS["DescribeConfigs"])
def test_describe_configs(node: Node, version: int) -> None:
    node.create_topic("t", config={"retention.ms": "77"})
    resources = [
        {"resource_type": 2, "resource_name": "t", "configuration_keys": None},
        {"resource_type": 4, "resource_name": str(BROKER), "configuration_keys": ["num.partitions", "nonsense"]},
        {"resource_type": 2, "resource_name": "unknown", "configuration_keys": None},
        {"resource_type": 4, "resource_name": "99", "configuration_keys": None},
        {"resource_type": 77, "resource_name": "x", "configuration_keys": None},
    ]
    topic, broker, *bad = ask(
        node, "DescribeConfigs", version, resources=resources, include_synonyms=True, include_documentation=True
    ).results
    configs = {config.name: config for config in topic.configs}
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("77", 1)
    assert [(synonym.name, synonym.source) for synonym in configs["retention.ms"].synonyms] == [("retention.ms", 1)]
    assert configs["segment.bytes"].config_source == 5
    [partitions] = broker.configs
    assert (partitions.name, partitions.value, partitions.config_source) == ("num.partitions", "3", 4)
    if version >= 3:
        assert configs["retention.ms"].config_type == 5
        assert configs["retention.ms"].documentation
    assert [result.error_code for result in bad] == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_request,
        ErrorCode.invalid_request,
    ]


@pytest.mark.parametrize("version", VERSIONS["DescribeCluster"])
def test_describe_cluster(node: Node, version: int) -> None:
    response = ask(node, "DescribeCluster", version, endpoint_type=1)
    assert (response.error_code, response.cluster_id, response.controller_id) == (
        ErrorCode.none,
        "test-cluster",
        BROKER,
    )
    assert [broker.broker_id for broker in response.brokers] == [BROKER]
    if version >= 1:
        other = ask(node, "DescribeCluster", version, endpoint_type=2)
        assert other.error_code is ErrorCode.mismatched_endpoint_type


# --- what holds for all
# -----------------------------------------------------------------------------------------


class Broken:
    """A port whose every use is a defect."""

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError("a defect")


OTHER_TESTS = {"Produce", "Fetch", "ApiVersions"}
"""Produce and Fetch have their own test of this; ApiVersions uses no port."""


@pytest.mark.parametrize("row", [row for row in TABLE if row.name not in OTHER_TESTS], ids=lambda row: row.name)
def test_a_defect_is_an_error_code_and_is_counted(node: Node, row: Any) -> None:
    """With every port broken each API still answers."""
    broken: Any = Broken()
    node.ports.cluster = node.ports.topics = node.ports.producer_ids = node.ports.partitions = broken
    node.ports.config_admin = node.ports.log_dirs = node.ports.groups = broken
    connection = Connection("PLAINTEXT")
    partitions: list[Any] = [0] if row.name == "DescribeLogDirs" else [{"partition_index": 0}]
    values: dict[str, Any] = {
        "topics": [{"name": "t", "topic": "t", "partitions": partitions, "partition_indexes": [0], "assignments": []}],
        "resources": [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}],
        "endpoint_type": 1,
        "coordinator_keys": ["g"],
        "groups_names": ["g"],
        "groups": [{"group_id": "g", "topics": None}] if row.name == "OffsetFetch" else ["g"],
    }
    reply = node.answer(request(row.key, row.max_version, **values)[4:], connection)
    assert isinstance(reply, bytes)
    _, response = decode_response(row.key, row.max_version, reply)
    assert "unknown_server_error" in repr(response)
    assert connection.counters.defects == {row.key: 1}


def test_a_malformed_body_has_no_answer(node: Node) -> None:
    with pytest.raises(InvalidRequest):
        node.answer(request(19, 5, topics=[])[4:-3])


@pytest.mark.parametrize(("api_key", "version"), [(999, 0), (-1, 0), (26, 0)])
def test_an_api_that_is_not_offered_has_no_answer(node: Node, api_key: int, version: int) -> None:
    frame = api_key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff"
    with pytest.raises(CloseConnection, match="does not offer"):
        node.answer(frame)


@pytest.mark.parametrize("version", [0, 1, 2, 14])
def test_produce_versions_that_are_gone_or_to_come_have_no_answer(node: Node, version: int) -> None:
    frame = (0).to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff"
    with pytest.raises(CloseConnection, match="version"):
        node.answer(frame)


def test_errors_are_told_apart_from_defects(node: Node) -> None:
    connection = Connection("PLAINTEXT")
    node.answer(request(10, 4, coordinator_keys=["g"])[4:], connection)
    assert connection.counters.defects == {}
