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
from uuid import UUID

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
PROTOCOL = {"protocol_type": "consumer", "protocol_name": "range"}
"""Of groups, where a version names it."""


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
    config = {"group.initial.rebalance.delay.ms": "0"}
    with InProcessCluster(tmp_path_factory.mktemp("every-version"), config=config) as cluster:
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
    answer = asker.ask(10, version, {"key": "group", "coordinator_keys": ["group", ""]})
    found, *nameless = answer.coordinators if version >= 4 else [answer]
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 0, *asker.address)
    assert [each.error_code for each in nameless] in ([], [ErrorCode.invalid_group_id])


# --- groups: each case has a group of its own, of one member


class Group:
    """A group named after the case, its member, and what a request says of both."""

    def __init__(self, asker: Asker, case: str, version: int) -> None:
        self.name = f"{case}-{version}"
        self.topic = {"name": TOPIC, "topic_id": asker.topic_id}
        joining = {**JOIN, "group_id": self.name, "group_instance_id": "static"}
        joined = asker.ask(11, 9, joining)
        assert joined.error_code == 0
        self.member_id, self.generation = joined.member_id, joined.generation_id
        self.who = {
            "group_id": self.name,
            "member_id": self.member_id,
            "generation_id": self.generation,
            "group_instance_id": "static",
        }
        assignments = [{"member_id": self.member_id, "assignment": b"all"}]
        assert asker.ask(14, 5, {**self.who, **PROTOCOL, "assignments": assignments}).error_code == 0

    def commit(self, asker: Asker, version: int = 9) -> Any:
        part = {"committed_offset": 2, "committed_leader_epoch": 0, "committed_metadata": "so far"}
        missing = {"name": "no-such-topic", "topic_id": UUID(int=1), "partitions": [part]}
        topics = [{**self.topic, "partitions": [part, {**part, "partition_index": 7}]}, missing]
        return asker.ask(8, version, {**self.who, "generation_id_or_member_epoch": self.generation, "topics": topics})

    def leave(self, asker: Asker) -> None:
        assert asker.ask(13, 5, {"group_id": self.name, "members": [self.who]}).error_code == 0


TEN_S = timedelta(seconds=10)
JOIN: dict[str, Any] = {
    "session_timeout": TEN_S,
    "rebalance_timeout": TEN_S,
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b"wants"}],
}


@case
def JoinGroup(asker: Asker, version: int) -> None:  # noqa: N802
    joining = {**JOIN, "group_id": f"join-{version}"}
    answer = asker.ask(11, version, joining)
    if version >= 4:  # KIP-394: an id first
        assert (answer.error_code, bool(answer.member_id)) == (ErrorCode.member_id_required, True)
        answer = asker.ask(11, version, {**joining, "member_id": answer.member_id})
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")
    assert [(each.member_id, each.metadata) for each in answer.members] == [(answer.member_id, b"wants")]
    assert answer.leader == answer.member_id
    assert version < 7 or answer.protocol_type == "consumer"


@case
def SyncGroup(asker: Asker, version: int) -> None:  # noqa: N802
    group = Group(asker, "sync", version)
    answer = asker.ask(14, version, {**group.who, **PROTOCOL})
    assert (answer.error_code, answer.assignment) == (0, b"all")
    assert version < 5 or (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


@case
def Heartbeat(asker: Asker, version: int) -> None:  # noqa: N802
    group = Group(asker, "heartbeat", version)
    assert asker.ask(12, version, group.who).error_code == 0
    old = asker.ask(12, version, {**group.who, "generation_id": group.generation - 1})
    assert old.error_code == ErrorCode.illegal_generation
    unknown = asker.ask(12, version, {**group.who, "member_id": "nobody"})
    fenced = ErrorCode.unknown_member_id if version < 3 else ErrorCode.fenced_instance_id
    assert unknown.error_code == fenced


@case
def LeaveGroup(asker: Asker, version: int) -> None:  # noqa: N802
    group = Group(asker, "leave", version)
    stranger = {"member_id": "nobody", "group_instance_id": None}
    answer = asker.ask(13, version, {**group.who, "members": [group.who, stranger]})
    assert answer.error_code == 0
    if version >= 3:
        codes = [(each.member_id, each.error_code) for each in answer.members]
        assert codes == [(group.member_id, 0), ("nobody", ErrorCode.unknown_member_id)]
    assert asker.ask(12, 4, group.who).error_code == ErrorCode.unknown_member_id


@case
def OffsetCommit(asker: Asker, version: int) -> None:  # noqa: N802
    group = Group(asker, "commit", version)
    known, unknown = group.commit(asker, version).topics
    assert [each.error_code for each in known.partitions] == [0, ErrorCode.unknown_topic_or_partition]
    missing = ErrorCode.unknown_topic_id if version >= 10 else ErrorCode.unknown_topic_or_partition
    assert [each.error_code for each in unknown.partitions] == [missing]
    assert version < 10 or (known.topic_id, unknown.topic_id) == (asker.topic_id, UUID(int=1))
    group.generation -= 1
    codes = {each.error_code for topic in group.commit(asker, version).topics for each in topic.partitions}
    assert ErrorCode.illegal_generation in codes


@case
def OffsetFetch(asker: Asker, version: int) -> None:  # noqa: N802
    group = Group(asker, "fetch", version)
    group.commit(asker)

    def fetch(topics: list[dict[str, Any]] | None, name: str = group.name) -> Any:
        asked = {"group_id": name, "topics": topics}
        answer = asker.ask(9, version, {**asked, "groups": [asked]})
        return answer.groups[0] if version >= 8 else answer

    named = [{**group.topic, "partition_indexes": [0, 7]}]
    for topics in [named, None] if version >= 2 else [named]:  # null: all there are
        [topic] = fetch(topics).topics
        found, *none = topic.partitions
        assert (found.error_code, found.committed_offset, found.metadata) == (0, 2, "so far")
        assert [(each.error_code, each.committed_offset) for each in none] == ([] if topics is None else [(0, -1)])
        assert version < 5 or found.committed_leader_epoch == 0
        assert version < 10 or topic.topic_id == asker.topic_id
    refused = fetch(named, "")
    if version >= 2:
        assert (refused.error_code, refused.topics) == (ErrorCode.invalid_group_id, ())
    else:
        assert {each.error_code for each in refused.topics[0].partitions} == {ErrorCode.invalid_group_id}
    unread = fetch([{"name": "no-such-topic", "topic_id": UUID(int=1), "partition_indexes": [0]}]).topics[0]
    unknown = ErrorCode.unknown_topic_id if version >= 10 else ErrorCode.none
    assert [(each.error_code, each.committed_offset) for each in unread.partitions] == [(unknown, -1)]


@case
def OffsetDelete(asker: Asker, version: int) -> None:  # noqa: N802
    group = Group(asker, "forget", version)
    group.commit(asker)
    group.leave(asker)
    topics = [{**group.topic, "partitions": [{"partition_index": 0}]}]
    answer = asker.ask(47, version, {"group_id": group.name, "topics": topics})
    assert answer.error_code == 0
    assert [each.error_code for each in answer.topics[0].partitions] == [0]
    assert asker.ask(9, 7, {"group_id": group.name, "topics": None}).topics == ()
    assert asker.ask(47, version, {"group_id": "no-such-group", "topics": topics}).error_code == (
        ErrorCode.group_id_not_found
    )


@case
def DescribeGroups(asker: Asker, version: int) -> None:  # noqa: N802
    group = Group(asker, "describe", version)
    asked = {"groups": [group.name, "no-such-group"], "include_authorized_operations": True}
    found, missing = asker.ask(15, version, asked).groups
    assert (found.error_code, found.group_state, found.protocol_type) == (0, "Stable", "consumer")
    assert found.protocol_data == "range"
    members = [(each.member_id, each.member_metadata, each.member_assignment) for each in found.members]
    assert members == [(group.member_id, b"wants", b"all")]
    assert version < 3 or found.authorized_operations > 0
    assert version < 4 or found.members[0].group_instance_id == "static"
    assert (missing.error_code, missing.group_state) == (ErrorCode.group_id_not_found if version >= 6 else 0, "Dead")


@case
def ListGroups(asker: Asker, version: int) -> None:  # noqa: N802
    group = Group(asker, "list", version)

    def listed(**filters: list[str]) -> dict[str, Any]:
        answer = asker.ask(16, version, filters)
        assert answer.error_code == 0
        return {each.group_id: each for each in answer.groups}

    found = listed()[group.name]
    assert found.protocol_type == "consumer"
    if version >= 4:
        assert found.group_state == "Stable"
        assert group.name in listed(states_filter=["stable"])
        assert group.name not in listed(states_filter=["Empty"])
    if version >= 5:
        assert found.group_type == "classic"
        assert group.name in listed(types_filter=["Classic"])
        assert not listed(types_filter=["consumer"])


@case
def DeleteGroups(asker: Asker, version: int) -> None:  # noqa: N802
    group, living = Group(asker, "delete", version), Group(asker, "delete-living", version)
    group.commit(asker)
    group.leave(asker)
    names = [group.name, living.name, "no-such-group"]
    results = {each.group_id: each.error_code for each in asker.ask(42, version, {"groups_names": names}).results}
    assert results == dict(zip(names, (0, ErrorCode.non_empty_group, ErrorCode.group_id_not_found), strict=True))
    assert asker.ask(9, 7, {"group_id": group.name, "topics": None}).topics == ()


# --- the rest


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
