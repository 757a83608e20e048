"""Each version of each API that we offer, asked through a socket and read by kio, none of whose code is ours.

kio's types are generated from Kafka's schemas, so a field that a version has and we do not write, or the reverse,
is an error here. Clients use a few versions of each API; these are the others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import BytesIO
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from kit.cluster import InProcessCluster
from kit.wire import WireClient, entity
from raylog.broker.handlers import TABLE
from raylog.protocol.errors import ErrorCode
from raylog.protocol.records import Record, decode_batches, encode_batch

pytestmark = pytest.mark.conformance

TOPIC = "every-version"
COUNT = 3
ONE_S = timedelta(seconds=1)


class Asker:
    """A connection to the broker that leads the topic's partition and is the controller: it can answer everything."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self.cluster = cluster
        host, _, port = cluster.bootstrap_servers.rpartition(":")
        self.address = (host, int(port))
        topic = cluster.brokers[0].partitions.state().topic(TOPIC)  # type: ignore[arg-type]
        assert topic is not None
        self.topic_id = topic.id

    def ask(self, key: int, version: int, values: dict[str, Any]) -> Any:
        request, response = load_request_schema(key, version), load_response_schema(key, version)
        header = request.__header_schema__(
            request_api_key=key, request_api_version=version, correlation_id=version, client_id="every-version"
        )
        frame = BytesIO()
        entity_writer(type(header))(frame, header)
        entity_writer(request)(frame, entity(request, values))
        with WireClient(self.address) as connection:
            connection.send(struct.pack(">i", frame.tell()) + frame.getvalue())
            answer = connection.receive()
        found, at = entity_reader(response.__header_schema__)(answer, 0)
        assert found.correlation_id == version
        body, size = entity_reader(response)(answer, at)
        assert at + size == len(answer), "bytes are left behind the response"
        return body

    def append(self, topic: str) -> None:
        """Produce a batch of the three records."""
        with WireClient(self.address) as connection:
            [[partition]] = [found.partitions for found in connection.produce(topic, batch()).topics]
        assert partition.error_code == 0

    def log_end(self) -> int:
        """Where the topic's log ends, told by ListOffsets (whose own versions are tested, too)."""
        partitions = [{"timestamp": -1}]
        [topic] = self.ask(2, 1, {"replica_id": -1, "topics": [{"name": TOPIC, "partitions": partitions}]}).topics
        offset: int = topic.partitions[0].offset
        return offset

    def topic(self, version: int, ids_from: int, *, name: str = "name") -> dict[str, Any]:
        """The topic as a version names it: by name, or from ``ids_from`` on by id."""
        return {"topic_id": self.topic_id} if version >= ids_from else {name: TOPIC}


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    with InProcessCluster(tmp_path_factory.mktemp("every-version")) as cluster:
        cluster.create_topic(TOPIC)
        asker = Asker(cluster)
        asker.append(TOPIC)
        yield asker


def batch() -> bytes:
    return encode_batch([Record(b"%d" % n, timestamp=1_000 + n) for n in range(COUNT)])


CASES: dict[str, Callable[[Asker, int], None]] = {}
"""For each API: ask it in a version, and assert what the answer must hold."""


def case(function: Callable[[Asker, int], None]) -> Callable[[Asker, int], None]:
    CASES[function.__name__] = function
    return function


@case
def Produce(asker: Asker, version: int) -> None:  # noqa: N802 (named like the API)
    end = asker.log_end()
    records = [{"index": 0, "records": batch()}]
    topics = [{**asker.topic(version, 13), "partition_data": records}]
    [topic] = asker.ask(0, version, {"acks": -1, "timeout": ONE_S, "topic_data": topics}).responses
    [partition] = topic.partition_responses
    assert (partition.error_code, partition.base_offset) == (0, end)
    if version >= 5:
        assert partition.log_start_offset == 0


@case
def Fetch(asker: Asker, version: int) -> None:  # noqa: N802
    end = asker.log_end()
    partitions = [{"partition": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}]
    topics = [{**asker.topic(version, 13, name="topic"), "partitions": partitions}]
    limits = {"replica_id": -1, "max_wait": ONE_S, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1}
    [topic] = asker.ask(1, version, {**limits, "topics": topics}).responses
    [partition] = topic.partitions
    assert (partition.error_code, partition.high_watermark, partition.last_stable_offset) == (0, end, end)
    values = [record.value for record in decode_batches(partition.records)]
    assert values[:COUNT] == [b"0", b"1", b"2"]
    assert len(values) == end


@case
def ListOffsets(asker: Asker, version: int) -> None:  # noqa: N802
    partitions = [{"timestamp": 1_001, "current_leader_epoch": -1}]
    topics = [{"name": TOPIC, "partitions": partitions}]
    [topic] = asker.ask(2, version, {"replica_id": -1, "topics": topics}).topics
    assert [(each.error_code, each.timestamp, each.offset) for each in topic.partitions] == [(0, 1_001, 1)]
    if version >= 4:
        assert topic.partitions[0].leader_epoch == 0


@case
def Metadata(asker: Asker, version: int) -> None:  # noqa: N802
    topics = [asker.topic(version, 12)]
    answer = asker.ask(3, version, {"topics": topics, "allow_auto_topic_creation": False})
    [topic] = answer.topics
    assert (topic.error_code, topic.name) == (0, TOPIC)
    assert [(each.error_code, each.leader_id, each.replica_nodes) for each in topic.partitions] == [(0, 0, (0,))]
    assert [(each.node_id, each.host, each.port) for each in answer.brokers] == [(0, *asker.address)]
    if version >= 10:
        assert topic.topic_id == asker.topic_id
    unknown = {"topics": [{"name": "no-such-topic"}], "allow_auto_topic_creation": False}
    if version >= 4:  # before, asking creates
        [missing] = asker.ask(3, version, unknown).topics
        assert missing.error_code == ErrorCode.unknown_topic_or_partition


@case
def FindCoordinator(asker: Asker, version: int) -> None:  # noqa: N802
    answer = asker.ask(10, version, {"key": "group", "coordinator_keys": ["group"]})
    [found] = answer.coordinators if version >= 4 else [answer]
    assert found.error_code == ErrorCode.coordinator_not_available


@case
def ApiVersions(asker: Asker, version: int) -> None:  # noqa: N802
    answer = asker.ask(18, version, {"client_software_name": "kio", "client_software_version": "1"})
    assert answer.error_code == 0
    assert {api.api_key: api.max_version for api in answer.api_keys} == {row.key: row.max_version for row in TABLE}


@case
def CreateTopics(asker: Asker, version: int) -> None:  # noqa: N802
    name = f"created-{version}"
    new = {"name": name, "num_partitions": 2, "replication_factor": 1, "configs": [{"name": "flush.ms", "value": "9"}]}
    [topic] = asker.ask(19, version, {"topics": [new], "timeout": ONE_S * 10}).topics
    assert (topic.error_code, topic.name) == (0, name)
    if version >= 5:
        assert (topic.num_partitions, topic.replication_factor) == (2, 1)
        assert [config.value for config in topic.configs if config.name == "flush.ms"] == ["9"]


@case
def DeleteTopics(asker: Asker, version: int) -> None:  # noqa: N802
    name = f"deleted-{version}"
    asker.cluster.create_topic(name)
    values: dict[str, Any] = {"topic_names": [name], "topics": [{"name": name}], "timeout": ONE_S * 10}
    [topic] = asker.ask(20, version, values).responses
    assert (topic.error_code, topic.name) == (0, name)


@case
def DeleteRecords(asker: Asker, version: int) -> None:  # noqa: N802
    name = f"shortened-{version}"
    asker.cluster.create_topic(name)
    asker.append(name)
    partitions = [{"partition_index": 0, "offset": 2}]
    [topic] = asker.ask(21, version, {"topics": [{"name": name, "partitions": partitions}], "timeout": ONE_S}).topics
    assert [(each.error_code, each.low_watermark) for each in topic.partitions] == [(0, 2)]


@case
def InitProducerId(asker: Asker, version: int) -> None:  # noqa: N802
    answer = asker.ask(22, version, {"transaction_timeout": ONE_S, "producer_id": -1, "producer_epoch": -1})
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    assert answer.producer_id >= 0


@case
def OffsetForLeaderEpoch(asker: Asker, version: int) -> None:  # noqa: N802
    partitions = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    values = {"replica_id": -1, "topics": [{"topic": TOPIC, "partitions": partitions}]}
    [topic] = asker.ask(23, version, values).topics
    [partition] = topic.partitions
    assert (partition.error_code, partition.leader_epoch, partition.end_offset) == (0, 0, asker.log_end())


@case
def DescribeConfigs(asker: Asker, version: int) -> None:  # noqa: N802
    resources = [{"resource_type": 2, "resource_name": TOPIC, "configuration_keys": None}]
    [result] = asker.ask(32, version, {"resources": resources, "include_documentation": True}).results
    assert result.error_code == 0
    [flush] = [config for config in result.configs if config.name == "flush.messages"]
    assert (flush.config_source, flush.read_only) == (5, False)
    if version >= 3:
        assert flush.config_type == 5
        assert flush.documentation


@case
def AlterConfigs(asker: Asker, version: int) -> None:  # noqa: N802
    configs = [{"name": "flush.ms", "value": "7"}]
    resources = [{"resource_type": 2, "resource_name": TOPIC, "configs": configs}]
    [answer] = asker.ask(33, version, {"resources": resources, "validate_only": True}).responses
    assert (answer.error_code, answer.resource_name) == (0, TOPIC)


@case
def DescribeLogDirs(asker: Asker, version: int) -> None:  # noqa: N802
    [directory] = asker.ask(35, version, {"topics": [{"topic": TOPIC, "partitions": [0]}]}).results
    assert directory.error_code == 0
    assert [(topic.name, topic.partitions[0].partition_size > 0) for topic in directory.topics] == [(TOPIC, True)]
    if version >= 4:
        assert 0 < directory.usable_bytes <= directory.total_bytes


@case
def CreatePartitions(asker: Asker, version: int) -> None:  # noqa: N802
    name = f"grown-{version}"
    asker.cluster.create_topic(name)
    topics = [{"name": name, "count": 3, "assignments": None}]
    [result] = asker.ask(37, version, {"topics": topics, "timeout": ONE_S * 10}).results
    assert (result.error_code, result.name) == (0, name)


@case
def ElectLeaders(asker: Asker, version: int) -> None:  # noqa: N802
    body = {"election_type": 0, "topic_partitions": [{"topic": TOPIC, "partitions": [0]}], "timeout": ONE_S}
    answer = asker.ask(43, version, body)
    [topic] = answer.replica_election_results
    [partition] = topic.partition_result
    assert (topic.topic, partition.partition_id) == (TOPIC, 0)
    assert partition.error_code == ErrorCode.election_not_needed
    assert version == 0 or answer.error_code == 0


@case
def AlterPartitionReassignments(asker: Asker, version: int) -> None:  # noqa: N802
    topics = [{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": None}]}]
    answer = asker.ask(45, version, {"topics": topics, "timeout": ONE_S})
    [topic] = answer.responses
    assert (answer.error_code, topic.name) == (0, TOPIC)
    assert [each.error_code for each in topic.partitions] == [ErrorCode.no_reassignment_in_progress]


@case
def ListPartitionReassignments(asker: Asker, version: int) -> None:  # noqa: N802
    answer = asker.ask(46, version, {"topics": None, "timeout": ONE_S})
    assert (answer.error_code, answer.topics) == (0, ())


@case
def IncrementalAlterConfigs(asker: Asker, version: int) -> None:  # noqa: N802
    configs = [{"name": "flush.ms", "config_operation": 0, "value": "7"}]
    resources = [{"resource_type": 2, "resource_name": TOPIC, "configs": configs}]
    [answer] = asker.ask(44, version, {"resources": resources, "validate_only": True}).responses
    assert (answer.error_code, answer.resource_name) == (0, TOPIC)


@case
def DescribeCluster(asker: Asker, version: int) -> None:  # noqa: N802
    answer = asker.ask(60, version, {"endpoint_type": 1})
    assert (answer.error_code, answer.controller_id) == (0, 0)
    assert [(each.broker_id, each.host, each.port) for each in answer.brokers] == [(0, *asker.address)]


@case
def DescribeProducers(asker: Asker, version: int) -> None:  # noqa: N802
    [topic] = asker.ask(61, version, {"topics": [{"name": TOPIC, "partition_indexes": [0]}]}).topics
    assert [(each.error_code, each.active_producers) for each in topic.partitions] == [(0, ())]


@case
def DescribeTopicPartitions(asker: Asker, version: int) -> None:  # noqa: N802
    answer = asker.ask(75, version, {"topics": [{"name": TOPIC}], "response_partition_limit": 10, "cursor": None})
    [topic] = answer.topics
    assert (topic.error_code, topic.topic_id, len(topic.partitions)) == (0, asker.topic_id, 1)


@pytest.mark.parametrize(
    ("name", "version"),
    [(row.name, version) for row in TABLE for version in range(row.min_version, row.max_version + 1)],
)
def test_the_answer_has_what_kafkas_schema_has(asker: Asker, name: str, version: int) -> None:
    CASES[name](asker, version)
