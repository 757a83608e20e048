"""What no single changed value asks: several different things at once, values that belong together, and what lies
between the edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from judge.bases import (
    ALONE,
    BASES,
    BATCH,
    BROKER,
    COMMITTED,
    DESCRIBED,
    GROUP,
    TIMEOUT_MS,
    TOPIC,
    ask,
    base_of,
    committed,
    config_of,
    ends,
    join,
    make,
    member,
    sync,
    topic_id,
)
from judge.steps import Batch, Ref, RefKind, Sequence, Step, Tree
from raylog.broker.handlers import TABLE

__all__ = ["several_cases"]

FIRST_TIME = 1_700_000_000_000
"""Of the records that every sequence finds, of which each is 1 ms later than the one before."""
METADATA_LIMIT = 4_096
FETCH, FIRST_SESSION, FIRST_TOPIC_ID, LAST_TOPIC_NAME, LAST_FETCH = 1, 7, 13, 12, 18
PRODUCE, INIT_PRODUCER_ID, INCREMENTAL, OFFSET_COMMIT, HEARTBEAT = 0, 22, 44, 8, 12
STATIC, STATIC_LAST = 5, 9
LIST = "leader.replication.throttled.replicas"


class Case(NamedTuple):
    """``values``: what is other than in the ordinary request; ``before``: where it is not as there; ``versions``: the
    first and the last."""

    name: str
    values: dict[str, Tree]
    before: tuple[Step, ...] | None = None
    after: tuple[Step, ...] | None = None
    versions: tuple[int, int] = (0, 99)


def several_cases() -> Iterator[Sequence]:
    """Of each API at each version that we offer."""
    for row in TABLE:
        base = BASES[row.name]
        for case in CASES.get(row.name, ()):
            first, last = case.versions
            for version in range(max(first, row.min_version), min(last, row.max_version) + 1):
                step = base_of(base._replace(values={**base.values, **case.values}), row.key, version)
                before = base.before if case.before is None else case.before
                after = base.after if case.after is None else case.after
                yield Sequence(f"{row.name} v{version} several: {case.name}", (*before, step, *after))
    for version in range(FIRST_SESSION, LAST_FETCH + 1):
        yield Sequence(f"Fetch v{version} several: a session", tuple(_session(version)))
    for version in range(STATIC, STATIC_LAST + 1):
        yield Sequence(f"JoinGroup v{version} several: a static leader starts again", tuple(_static_leader(version)))


def _parts(*indexes: int, **values: Tree) -> list[Tree]:
    return [{"partition_index": index, **values} for index in indexes]


def _offsets(*asked: tuple[str, int, int]) -> dict[str, Tree]:
    """Names, partitions and timestamps."""
    return {
        "topics": [
            {
                "name": name,
                "partitions": [{"partition_index": index, "current_leader_epoch": -1, "timestamp": time}],
            }
            for name, index, time in asked
        ]
    }


def _fetched(*asked: tuple[str, int, int, int]) -> list[Tree]:
    """Names, partitions, offsets and bounds."""
    return [
        {
            "topic": name,
            "topic_id": topic_id(name),
            "partitions": [
                {
                    "partition": index, "current_leader_epoch": -1, "fetch_offset": offset, "last_fetched_epoch": -1,
                    "log_start_offset": -1, "partition_max_bytes": limit,
                }
            ],
        }
        for name, index, offset, limit in asked
    ]  # fmt: skip


def _session(version: int) -> Iterator[Step]:
    """Made, gone on with, changed, and gone on with at a version that names topics in the other way."""
    other = LAST_TOPIC_NAME if version >= FIRST_TOPIC_ID else FIRST_TOPIC_ID
    both = _fetched(("t", 0, 0, 1 << 20), ("t", 1, 3, 1 << 20))

    def fetch(at: int, epoch: int, topics: list[Tree], forgotten: tuple[tuple[str, int], ...] = ()) -> Step:
        values = {
            **BASES["Fetch"].values,
            "session_id": Ref(RefKind.SESSION_ID, "a") if epoch else 0,
            "session_epoch": epoch,
            "topics": topics,
            "forgotten_topics_data": [
                {"topic": name, "topic_id": topic_id(name), "partitions": [index]} for name, index in forgotten
            ],
        }
        return ask(FETCH, at, **values)

    yield fetch(version, 0, both)
    yield fetch(version, 1, [])
    yield fetch(version, 2, _fetched(("u", 0, 1, 1 << 20)), (("t", 0),))
    yield fetch(version, 3, [])
    yield fetch(version, 4, _fetched(("t", 1, 0, 1 << 20)))
    yield fetch(other, 5, [])
    yield fetch(version, 5, [], (("u", 0), ("t", 1)))
    yield fetch(version, 6, [])


def _static_leader(version: int) -> Iterator[Step]:
    """In a settled group its leader, which is static, starts again, and then what it was."""
    static = {"group_instance_id": "i"}
    yield join(version=STATIC, **static)
    yield sync(**static)
    yield join("b", version, **static)
    yield DESCRIBED[0]
    yield sync(**static)
    yield sync("b", Ref(RefKind.GENERATION, "b"), **static)
    yield ask(HEARTBEAT, 4, group_id="j#", generation_id=1, member_id=member("a"), **static)


def _resource(name: str, *configs: tuple[str, str | None, int]) -> Tree:
    return {
        "resource_type": TOPIC,
        "resource_name": name,
        "configs": [{"name": key, "value": value, "config_operation": operation} for key, value, operation in configs],
    }


def _described(kind: int, name: str, *keys: str) -> Tree:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys)}


def _topic(name: str, count: int = -1, factor: int = -1, *replicas: tuple[int, list[int]]) -> Tree:
    assigned = [{"partition_index": index, "broker_ids": brokers} for index, brokers in replicas]
    return {"name": name, "num_partitions": count, "replication_factor": factor, "assignments": assigned, "configs": []}


def _grown(name: str, count: int, *replicas: list[int]) -> Tree:
    return {"name": name, "count": count, "assignments": [{"broker_ids": brokers} for brokers in replicas] or None}


def _produced(*asked: tuple[str, int]) -> dict[str, Tree]:
    return {
        "topic_data": [
            {"name": name, "topic_id": topic_id(name), "partition_data": [{"index": index, "records": BATCH}]}
            for name, index in asked
        ]
    }


def _moved(index: int, replicas: list[int] | None, **more: Tree) -> dict[str, Tree]:
    return {"topics": [{"name": "t", "partitions": [{"partition_index": index, "replicas": replicas}]}], **more}


def _written(sequence: int) -> Step:
    data = [{"name": "p#", "partition_data": [{"index": 0, "records": Batch("a", sequence)}]}]
    return ask(PRODUCE, 9, acks=-1, timeout=TIMEOUT_MS, topic_data=data)


STAMPED = make("p#", configs=[{"name": "message.timestamp.type", "value": "LogAppendTime"}])
TWO_SETTINGS = [("retention.ms", "60000", 0), ("retention.bytes", "x", 0)]
KNOWN_PRODUCER = (ask(INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=60_000, producer_id=-1,
                      producer_epoch=-1),)  # fmt: skip
LISTED = (make("c#"), ask(INCREMENTAL, 1, settles=True, resources=[_resource("c#", (LIST, "0:0,0:1", 0))]))
IN_GENERATION = ask(
    OFFSET_COMMIT, 8, group_id="j#", generation_id_or_member_epoch=1, member_id=member(),
    topics=[{"name": name, "partitions": [{"partition_index": 0, "committed_offset": 2}]} for name in ("t", "u")],
)  # fmt: skip


def _producer(plus_id: int, plus_epoch: int) -> dict[str, Tree]:
    return {
        "producer_id": Ref(RefKind.PRODUCER_ID, "a", plus_id),
        "producer_epoch": Ref(RefKind.PRODUCER_EPOCH, "a", plus_epoch),
    }


CASES: Mapping[str, tuple[Case, ...]] = {
    "Produce": (
        Case("a partition that is not there", _produced(("p#", 0), ("absent", 0), ("p#", 9))),
        *(
            Case(
                f"sequence {sequence}, of 5 that is the first",
                {"topic_data": [{"name": "p#", "partition_data": [{"index": 0, "records": Batch("a", sequence)}]}]},
                before=(make("p#"), *KNOWN_PRODUCER, _written(5)),
                versions=(9, 9),
            )
            for sequence in (0, 1, 4, 6, 7)
        ),
        Case(
            "times of append",
            {},
            before=(STAMPED,),
            after=(
                *(ends("p#", time) for time in (-1, -3, FIRST_TIME)),
                ask(FETCH, 11, **{**BASES["Fetch"].values, "topics": _fetched(("p#", 0, 0, 1 << 20))}),
            ),
        ),
    ),
    "Fetch": (
        Case("at most a byte", {"max_bytes": 1, "topics": _fetched(("t", 0, 0, 1 << 20), ("t", 1, 0, 1 << 20))}),
        Case("at most one batch", {"max_bytes": 150, "topics": _fetched(("t", 0, 0, 1 << 20), ("u", 0, 0, 1 << 20))}),
        Case("at most a byte of each", {"topics": _fetched(("t", 0, 0, 1), ("t", 1, 1, 1), ("u", 0, 2, 1))}),
        Case("ends", {"topics": _fetched(("t", 0, 3, 99), ("t", 1, 4, 99), ("u", 0, 2, 99), ("absent", 0, 0, 99))}),
        Case(
            "committed alone",
            {"isolation_level": 1, "topics": _fetched(("u", 0, 0, 999), ("t", 1, 3, 999), ("t", 7, 0, 999))},
        ),
    ),
    "ListOffsets": (
        *(Case(f"time {time}", _offsets(("t", 0, time))) for time in (-3, -4, -5, -6, -7)),
        *(Case(f"time +{more}", _offsets(("t", 0, FIRST_TIME + more))) for more in (-1, 0, 1, 2, 3)),
        Case("ends", _offsets(("u", 0, -1), ("absent", 0, -1), ("t", 1, -2), ("t", 9, -1))),
    ),
    "Metadata": (
        *(
            Case(
                f"names, {which}",
                {
                    "topics": [{"topic_id": None, "name": name} for name in ("u", "absent", "t", "a/b")],
                    "include_topic_authorized_operations": topics,
                    "include_cluster_authorized_operations": cluster,
                },
            )
            for which, topics, cluster in (("all", True, True), ("of topics", True, False), ("of it", False, True))
        ),
        Case(
            "ids",
            {
                "topics": [{"topic_id": topic_id(name), "name": None} for name in ("u", "absent", "t")],
                "include_topic_authorized_operations": True,
            },
            versions=(12, 99),
        ),
    ),
    "OffsetCommit": (
        Case(
            "some that are not there",
            {
                "topics": [
                    {
                        "name": name,
                        "topic_id": topic_id(name),
                        "partitions": _parts(*indexes, committed_offset=7, committed_metadata="m"),
                    }
                    for name, indexes in (("u", (0, 1)), ("absent", (0,)), ("t", (1, 0)))
                ]
            },
        ),
        *(
            Case(
                f"{length} characters",
                {
                    "topics": [
                        {
                            "name": "t",
                            "topic_id": topic_id("t"),
                            "partitions": _parts(0, committed_offset=1, committed_metadata="m" * length),
                        }
                    ]
                },
            )
            for length in (METADATA_LIMIT, METADATA_LIMIT + 1)
        ),
    ),
    "OffsetFetch": (
        Case(
            "groups",
            {
                "groups": [
                    {"group_id": GROUP, "topics": None},
                    {
                        "group_id": "absent",
                        "topics": [{"name": "t", "topic_id": topic_id("t"), "partition_indexes": [1, 0]}],
                    },
                    {"group_id": "x#", "topics": [{"name": "u", "topic_id": topic_id("u"), "partition_indexes": [0]}]},
                ]
            },
            before=(COMMITTED,),
            versions=(8, 99),
        ),
        Case(
            "topics",
            {
                "topics": [
                    {"name": "u", "partition_indexes": [0]},
                    {"name": "t", "partition_indexes": [1, 0, 9]},
                    {"name": "absent", "partition_indexes": [0]},
                ]
            },
            versions=(1, 7),
        ),
    ),
    "FindCoordinator": (Case("groups", {"coordinator_keys": [GROUP, "h#", "absent"]}, versions=(4, 99)),),
    "LeaveGroup": (
        Case(
            "one that is not there",
            {
                "members": [
                    {"member_id": "nobody", "group_instance_id": None},
                    {"member_id": member(), "group_instance_id": None},
                    {"member_id": "", "group_instance_id": "nobody"},
                ]
            },
            versions=(3, 99),
        ),
        Case(
            "another with its instance",
            {"members": [{"member_id": "nobody", "group_instance_id": "i"}]},
            before=(join(version=STATIC, group_instance_id="i"), sync(group_instance_id="i")),
            versions=(3, 99),
        ),
    ),
    "DescribeGroups": (Case("groups", {"groups": ["absent", GROUP, "x#"]}, before=(COMMITTED,)),),
    "ListGroups": (
        Case("states", {"states_filter": ["Stable", "Empty", "none"], "types_filter": []}),
        Case("types", {"states_filter": [], "types_filter": ["consumer", "classic"]}),
        Case("another type", {"states_filter": [], "types_filter": ["consumer"]}),
    ),
    "CreateTopics": (
        Case("one that cannot be", {"topics": [_topic("n#", 2, 1), _topic("n#-many", 1, 9), _topic("a/b", 1, 1)]}),
        Case("one twice", {"topics": [_topic("n#", 1, 1), _topic("n#-two", 1, 1), _topic("n#", 2, 1)]}),
        Case("one that is there", {"topics": [_topic("n#", 1, 1), _topic("n#-two", 1, 1)]}, before=(make("n#"),)),
        *(
            Case(f"by hand, {which}", {"topics": [_topic("n#", -1, -1, *replicas)]})
            for which, replicas in (
                ("two", ((0, [0]), (1, [0]))),
                ("not from 0", ((1, [0]),)),
                ("a broker twice", ((0, [0, 0]),)),
                ("no broker", ((0, []),)),
                ("brokers that are not there", ((0, [0]), (1, [7]))),
                ("more than before", ((0, [0]), (1, [0, 7]))),
            )
        ),
    ),
    "DeleteTopics": (
        Case("names", {"topic_names": ["absent", "d#"]}, versions=(0, 5)),
        *(
            Case(which, {"topics": [{"name": name, "topic_id": id_} for name, id_ in topics]}, versions=(6, 99))
            for which, topics in (
                ("an id twice", ((None, topic_id("d#")), (None, topic_id("d#")))),
                ("an id and its name", ((None, topic_id("d#")), ("d#", None))),
                ("ids", ((None, topic_id("absent")), (None, topic_id("d#")))),
                ("both at once", (("d#", topic_id("d#")),)),
            )
        ),
    ),
    "DeleteRecords": tuple(
        Case(
            f"{offsets}",
            {"topics": [{"name": "r#", "partitions": [{"partition_index": n, "offset": to} for n, to in offsets]}]},
        )
        for offsets in (((0, 1), (0, 2)), ((0, 2), (0, 1)), ((9, 1), (0, 3)), ((0, 4),))
    ),
    "InitProducerId": tuple(
        Case(f"id +{plus_id}, epoch +{plus}", _producer(plus_id, plus), before=KNOWN_PRODUCER, versions=(3, 99))
        for plus_id, plus in ((0, 0), (0, 1), (0, 5), (100, 0))
    ),
    "OffsetForLeaderEpoch": (
        Case(
            "some that are not there",
            {
                "topics": [
                    {
                        "topic": name,
                        "partitions": [
                            {"partition": n, "current_leader_epoch": 0, "leader_epoch": epoch} for n, epoch in asked
                        ],
                    }
                    for name, asked in (("u", ((0, 0),)), ("absent", ((0, 0),)), ("t", ((1, 0), (0, 1), (9, 0))))
                ]
            },
        ),
    ),
    "DescribeConfigs": (
        Case(
            "topics",
            {"resources": [_described(TOPIC, name, "retention.ms", "nonsense") for name in ("u", "absent", "t")]},
        ),
        Case(
            "documented",
            {"resources": [_described(TOPIC, "t", LIST, "min.cleanable.dirty.ratio")], "include_documentation": True},
        ),
        *(
            Case(f"broker {name!r}", {"resources": [_described(BROKER, name, "group.max.size", "log.retention.ms")]})
            for name in ("0", "", "7", "t")
        ),
    ),
    "AlterConfigs": (
        Case("resources", {"resources": [_resource("absent", *TWO_SETTINGS[:1]), _resource("c#", *TWO_SETTINGS[:1])]}),
        Case("one value that cannot be", {"resources": [_resource("c#", *TWO_SETTINGS)]}),
        Case(
            "what is left out",
            {"resources": [_resource("c#", *TWO_SETTINGS[:1])]},
            before=LISTED,
            after=(config_of("c#", LIST, "retention.ms"),),
        ),
    ),
    "IncrementalAlterConfigs": (
        Case("resources", {"resources": [_resource("absent", *TWO_SETTINGS[:1]), _resource("c#", *TWO_SETTINGS[:1])]}),
        Case("one value that cannot be", {"resources": [_resource("c#", *TWO_SETTINGS)]}),
        *(
            Case(
                f"a list, {operation} {value}",
                {"resources": [_resource("c#", (LIST, value, operation))]},
                before=LISTED,
                after=(config_of("c#", LIST),),
            )
            for value, operation in (("0:0,0:1", 3), ("0:1", 3), ("1:0", 3), ("0:1,1:1", 2), (None, 1))
        ),
    ),
    "DescribeLogDirs": (
        Case("topics", {"topics": [{"topic": "t", "partitions": [1, 0, 9]}, {"topic": "u", "partitions": [0]}]}),
        Case("one partition", {"topics": [{"topic": "t", "partitions": [1]}, {"topic": "absent", "partitions": [0]}]}),
    ),
    "CreatePartitions": tuple(
        Case(which, {"topics": topics})
        for which, topics in (
            ("by hand", [_grown("q#", 3, [0], [0])]),
            ("by hand, too few", [_grown("q#", 3, [0])]),
            ("by hand, too many", [_grown("q#", 2, [0], [0])]),
            ("by hand, not there", [_grown("q#", 2, [7])]),
            ("by hand, nowhere", [_grown("q#", 2, [])]),
            ("by hand, more", [_grown("q#", 2, [0, 7])]),
            ("by hand, twice", [_grown("q#", 2, [0, 0])]),
            ("one that is not there", [_grown("absent", 2), _grown("q#", 2)]),
            ("one that cannot be", [_grown("t", 1), _grown("q#", 2)]),
        )
    ),
    "DeleteGroups": (
        Case("one that is not there", {"groups_names": ["absent", "x#"]}),
        Case(
            "members that have joined",
            {"groups_names": ["j#", "x#"]},
            before=(COMMITTED, join(version=3)),
            after=DESCRIBED,
        ),
        Case("members", {"groups_names": ["x#", "j#"]}, before=(COMMITTED, *ALONE), after=DESCRIBED),
    ),
    "ElectLeaders": tuple(
        Case(
            f"type {kind}",
            {
                "election_type": kind,
                "topic_partitions": [
                    {"topic": name, "partitions": parts}
                    for name, parts in (("t", [1, 0, 9]), ("absent", [0]), ("u", [0]))
                ],
            },
        )
        for kind in (0, 1)
    ),
    "AlterPartitionReassignments": tuple(
        Case(f"{replicas}, {allowed}", _moved(0, replicas, allow_replication_factor_change=allowed))
        for replicas in ([], [7], [0, 0], [0, 7], [-1], None)
        for allowed in (True, False)
    ),
    "ListPartitionReassignments": (
        Case(
            "topics",
            {"topics": [{"name": name, "partition_indexes": [0, 9]} for name in ("u", "absent", "t")]},
        ),
    ),
    "OffsetDelete": (
        Case(
            "some that are not there",
            {"topics": [{"name": "t", "partitions": _parts(1, 0, 9)}, {"name": "absent", "partitions": _parts(0)}]},
        ),
        Case(
            "what a member reads, and what none does",
            {
                "group_id": "j#",
                "topics": [{"name": "u", "partitions": _parts(0)}, {"name": "t", "partitions": _parts(0)}],
            },
            before=(*ALONE, IN_GENERATION),
            after=(committed("j#"),),
        ),
    ),
    "DescribeCluster": (
        Case("operations of controllers", {"include_cluster_authorized_operations": True, "endpoint_type": 2}),
        Case("fenced ones, too", {"include_cluster_authorized_operations": True, "include_fenced_brokers": True}),
    ),
    "DescribeProducers": (
        Case(
            "some that are not there",
            {"topics": [{"name": "t", "partition_indexes": [1, 0, 9]}, {"name": "absent", "partition_indexes": [0]}]},
        ),
    ),
    "DescribeTopicPartitions": (
        *(
            Case(
                f"limit {limit}, from {name!r} {index}",
                {
                    "topics": [{"name": "u"}, {"name": "t"}, {"name": "absent"}],
                    "response_partition_limit": limit,
                    "cursor": {"topic_name": name, "partition_index": index},
                },
            )
            for limit in (1, 2, 5)
            for name, index in (("t", 0), ("t", 1), ("t", 2), ("u", 0), ("absent", 0), ("absent", 1))
        ),
        *(
            Case(
                f"from {name!r} {index}",
                {"topics": [{"name": "t"}], "cursor": {"topic_name": name, "partition_index": index}},
            )
            for name, index in (("", 0), ("t", -1), ("u", 0), ("a", 0))
        ),
        *(
            Case(f"limit {limit}", {"topics": [{"name": "u"}, {"name": "t"}], "response_partition_limit": limit})
            for limit in (1, 2, 3)
        ),
    ),
}
