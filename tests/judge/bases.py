"""For each API an ordinary request, what must be there before it, and how one sees what it did."""

from __future__ import annotations

from typing import NamedTuple

from judge.steps import Ref, RefKind, Step, Tree, filled
from raylog.protocol.ids import TimestampMs
from raylog.protocol.records import Record, encode_batch
from raylog.protocol.wire import consumer_protocol
from raylog.protocol.wire.messages import request_type

__all__ = ["BASES", "GROUP", "TOPICS", "Base", "ask", "base_of"]

TOPICS = {"t": 2, "u": 1}
"""That every sequence finds, with RECORDS in each partition, and their partitions."""
GROUP = "g"
"""That every sequence finds, with an offset of t-0."""
BATCH = encode_batch([Record(b"value", key=b"key", timestamp=TimestampMs(1_700_000_000_000 + n)) for n in range(3)])
PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH = 0, 1, 2, 3, 8, 9
JOIN, SYNC, CREATE_TOPICS, DESCRIBE_CONFIGS, DESCRIBE_GROUPS = 11, 14, 19, 32, 15
TOPIC, BROKER = 2, 4
TIMEOUT_MS = 10_000


class Base(NamedTuple):
    """``values`` has the fields of all versions."""

    values: dict[str, Tree]
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    settles: bool = False


def ask(
    api: int, version: int, client: str = "a", *, settles: bool = False, waits: bool = False, **values: Tree
) -> Step:
    """A step whose fields without a value have their defaults."""
    return Step(api, version, filled(request_type(api, version), values), client, waits, settles)


def base_of(base: Base, api: int, version: int) -> Step:
    """The ordinary request at a version."""
    return ask(api, version, settles=base.settles, **base.values)


def topic_id(name: str) -> Ref:
    return Ref(RefKind.TOPIC_ID, name)


def make(name: str, partitions: int = 1, **more: Tree) -> Step:
    wanted = {"name": name, "num_partitions": partitions, "replication_factor": 1, **more}
    return ask(CREATE_TOPICS, 7, settles=True, topics=[wanted], timeout=TIMEOUT_MS)


def seen(name: str) -> Step:
    """A topic as the metadata tells of it."""
    return ask(METADATA, 12, topics=[{"name": name, "topic_id": None}])


def ends(name: str, timestamp: int = -1) -> Step:
    asked = [{"partition_index": n, "timestamp": timestamp, "current_leader_epoch": -1} for n in (0, 1)]
    return ask(LIST_OFFSETS, 7, replica_id=-1, topics=[{"name": name, "partitions": asked}])


def join(client: str = "a", version: int = 9, *, waits: bool = False, **values: Tree) -> Step:
    given: dict[str, Tree] = {
        "group_id": "j#",
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": consumer_protocol.encode_subscription(("t",))}],
        **values,
    }
    return ask(JOIN, version, client, waits=waits, **given)


def member(client: str = "a") -> Ref:
    return Ref(RefKind.MEMBER_ID, client)


def sync(client: str = "a", generation: Tree = 1, *, waits: bool = False, **values: Tree) -> Step:
    given: dict[str, Tree] = {
        "group_id": "j#",
        "generation_id": generation,
        "member_id": member(client),
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member(client), "assignment": b"share"}],
        **values,
    }
    return ask(SYNC, 5, client, waits=waits, **given)


JOINED = (join(), join(member_id=member()))
ALONE = (*JOINED, sync())
DESCRIBED = (ask(DESCRIBE_GROUPS, 5, groups=["j#"]),)


def committed(group: str) -> Step:
    return ask(OFFSET_FETCH, 8, groups=[{"group_id": group, "topics": None}], require_stable=False)


def config_of(name: str, *keys: str) -> Step:
    asked = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": list(keys)}
    return ask(DESCRIBE_CONFIGS, 4, resources=[asked], include_synonyms=True)


RETENTION = {"resource_type": TOPIC, "resource_name": "c#", "configs": [{"name": "retention.ms", "value": "60000"}]}
PARTITION_0 = {"partition_index": 0}
COMMITTED = ask(
    OFFSET_COMMIT,
    8,
    group_id="x#",
    generation_id_or_member_epoch=-1,
    topics=[{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 2}]}],
)

BASES: dict[str, Base] = {
    "Produce": Base(
        {
            "transactional_id": None,
            "acks": -1,
            "timeout": TIMEOUT_MS,
            "topic_data": [
                {"name": "p#", "topic_id": topic_id("p#"), "partition_data": [{"index": 0, "records": BATCH}]}
            ],
        },
        before=(make("p#"),),
        after=(ends("p#"), ends("p#", -2)),
    ),
    "Fetch": Base(
        {
            "replica_id": -1,
            "replica_state": {"replica_id": -1, "replica_epoch": -1},
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": 1 << 20,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [
                {
                    "topic": "t",
                    "topic_id": topic_id("t"),
                    "partitions": [
                        {
                            "partition": 0,
                            "current_leader_epoch": -1,
                            "fetch_offset": 0,
                            "last_fetched_epoch": -1,
                            "log_start_offset": -1,
                            "partition_max_bytes": 1 << 20,
                        }
                    ],
                }
            ],
            "forgotten_topics_data": [],
            "rack_id": "",
        }
    ),
    "ListOffsets": Base(
        {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [
                {
                    "name": "t",
                    "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}],
                }
            ],
            "timeout": TIMEOUT_MS,
        }
    ),
    "Metadata": Base({"topics": [{"topic_id": None, "name": "t"}], "allow_auto_topic_creation": False}),
    "OffsetCommit": Base(
        {
            "group_id": "o#",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "retention_time": -1,
            "topics": [
                {
                    "name": "t",
                    "topic_id": topic_id("t"),
                    "partitions": [
                        {
                            "partition_index": 0,
                            "committed_offset": 2,
                            "committed_leader_epoch": 0,
                            "committed_metadata": "m",
                        }
                    ],
                }
            ],
        },
        after=(committed("o#"), ask(DESCRIBE_GROUPS, 5, groups=["o#"])),
    ),
    "OffsetFetch": Base(
        {
            "group_id": GROUP,
            "topics": [{"name": "t", "partition_indexes": [0]}],
            "groups": [
                {
                    "group_id": GROUP,
                    "member_id": None,
                    "member_epoch": -1,
                    "topics": [{"name": "t", "topic_id": topic_id("t"), "partition_indexes": [0]}],
                }
            ],
            "require_stable": False,
        }
    ),
    "FindCoordinator": Base({"key": GROUP, "key_type": 0, "coordinator_keys": [GROUP]}),
    "JoinGroup": Base(dict(join().tree) | {"group_instance_id": None}, after=DESCRIBED),
    "Heartbeat": Base(
        {"group_id": "j#", "generation_id": 1, "member_id": member(), "group_instance_id": None}, before=ALONE
    ),
    "LeaveGroup": Base(
        {"group_id": "j#", "member_id": member(), "members": [{"member_id": member(), "group_instance_id": None}]},
        before=ALONE,
        after=DESCRIBED,
    ),
    "SyncGroup": Base(dict(sync().tree), before=JOINED, after=DESCRIBED),
    "DescribeGroups": Base({"groups": [GROUP], "include_authorized_operations": False}),
    "ListGroups": Base({"states_filter": ["Empty"], "types_filter": ["classic"]}, before=(*ALONE, COMMITTED)),
    "ApiVersions": Base({"client_software_name": "judge", "client_software_version": "1"}),
    "CreateTopics": Base(
        {
            "topics": [
                {
                    "name": "n#",
                    "num_partitions": 1,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [{"name": "retention.ms", "value": "60000"}],
                }
            ],
            "timeout": TIMEOUT_MS,
            "validate_only": False,
        },
        after=(seen("n#"), config_of("n#", "retention.ms")),
        settles=True,
    ),
    "DeleteTopics": Base(
        {
            "topics": [{"name": "d#", "topic_id": None}],
            "topic_names": ["d#"],
            "timeout": TIMEOUT_MS,
        },
        before=(make("d#"),),
        after=(seen("d#"),),
        settles=True,
    ),
    "DeleteRecords": Base(
        {
            "topics": [{"name": "r#", "partitions": [{"partition_index": 0, "offset": 1}]}],
            "timeout": TIMEOUT_MS,
        },
        before=(
            make("r#"),
            ask(
                PRODUCE,
                9,
                acks=-1,
                timeout=TIMEOUT_MS,
                topic_data=[{"name": "r#", "partition_data": [{"index": 0, "records": BATCH}]}],
            ),
        ),
        after=(ends("r#", -2), ends("r#")),
    ),
    "InitProducerId": Base(
        {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    ),
    "OffsetForLeaderEpoch": Base(
        {
            "replica_id": -1,
            "topics": [{"topic": "t", "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}],
        }
    ),
    "DescribeConfigs": Base(
        {
            "resources": [{"resource_type": TOPIC, "resource_name": "t", "configuration_keys": ["retention.ms"]}],
            "include_synonyms": True,
            "include_documentation": False,
        }
    ),
    "AlterConfigs": Base(
        {"resources": [RETENTION], "validate_only": False},
        before=(make("c#"),),
        after=(config_of("c#", "retention.ms"),),
        settles=True,
    ),
    "DescribeLogDirs": Base({"topics": [{"topic": "t", "partitions": [0]}]}),
    "CreatePartitions": Base(
        {
            "topics": [{"name": "q#", "count": 2, "assignments": None}],
            "timeout": TIMEOUT_MS,
            "validate_only": False,
        },
        before=(make("q#"),),
        after=(seen("q#"),),
        settles=True,
    ),
    "DeleteGroups": Base(
        {"groups_names": ["x#"]},
        before=(COMMITTED,),
        after=(committed("x#"),),
    ),
    "ElectLeaders": Base(
        {"election_type": 0, "topic_partitions": [{"topic": "t", "partitions": [0]}], "timeout": TIMEOUT_MS}
    ),
    "IncrementalAlterConfigs": Base(
        {
            "resources": [
                {**RETENTION, "configs": [{"name": "retention.ms", "value": "60000", "config_operation": 0}]}
            ],
            "validate_only": False,
        },
        before=(make("c#"),),
        after=(config_of("c#", "retention.ms"),),
        settles=True,
    ),
    "AlterPartitionReassignments": Base(
        {
            "timeout": TIMEOUT_MS,
            "allow_replication_factor_change": True,
            "topics": [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [0]}]}],
        },
        settles=True,
    ),
    "ListPartitionReassignments": Base({"timeout": TIMEOUT_MS, "topics": [{"name": "t", "partition_indexes": [0]}]}),
    "OffsetDelete": Base(
        {"group_id": "x#", "topics": [{"name": "t", "partitions": [PARTITION_0]}]},
        before=(COMMITTED,),
        after=(committed("x#"),),
    ),
    "DescribeCluster": Base({"include_cluster_authorized_operations": False, "endpoint_type": 1}),
    "DescribeProducers": Base({"topics": [{"name": "t", "partition_indexes": [0]}]}),
    "DescribeTopicPartitions": Base({"topics": [{"name": "t"}], "response_partition_limit": 2_000, "cursor": None}),
}
