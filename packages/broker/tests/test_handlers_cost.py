"""What a request may cost: time that grows no faster than its bytes, memory and an answer within a factor of them.

Every API of the table is asked for many things: for names and partitions that do not exist, each once, and for the same
ones again and again. Where time is linear up to thousands of entries in the best of some tries, what grows faster is a
small part of it at a hundred thousand: ``make cost`` tries that, which takes minutes; at night there are twice as many
as for a change.
"""

from __future__ import annotations

import gc
import os
import re
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from kit.forms import NIGHTLY
from kit.machine import scaled
from kit.node import Node
from kit.wire import request
from raylog.broker.handlers import TABLE, ApiRow
from raylog.broker.handlers.context import Connection, DelayedReply
from raylog.protocol.records import Record, encode_batch
from raylog.protocol.wire.fetch import FetchPartition, FetchRequest, FetchTopic, encode_fetch_request
from raylog.protocol.wire.primitives import ZERO_UUID
from raylog.protocol.wire.produce import PartitionRecords, ProduceRequest, TopicRecords, encode_produce_request

SOME = 400
"""For memory, whose measurement is slow."""
MANY = int(os.environ.get("RAYLOG_COST_ENTRIES", "8000" if NIGHTLY else "4000"))
FEW = MANY // 16
MAX_RATIO = 24
"""Of the times for MANY and FEW: 16 where time is linear, 256 where it is quadratic, 30 where each entry costs 25 µs
and 13 ns for each one before it."""
TRIES = 8

MAX_ANSWER = 60
"""Bytes of an answer for each byte of its request, beside what it may tell of everything that there is."""
MAX_MEMORY = 250
"""Bytes of memory for each byte of a request. Most is for what is read from it: an object of 50 bytes for four."""
MAX_REST = 1 << 19

T, GROUP = "t", "g"
PARTITIONS = 100
NOTHING = timedelta()

Values = dict[str, Any]
Shape = Callable[[int], "Values | bytes"]
"""From a number to a request that asks for so many things: its fields, or its frame."""


def absent(count: int) -> list[str]:
    return [f"absent-{number}" for number in range(count)]


def names(of: Callable[[list[str]], Values], known: str = T) -> Mapping[str, Shape]:
    """Things that are asked for by name."""
    return {
        "absent": lambda count: of(absent(count)),
        "absent again": lambda count: of(["absent"] * count),
        "known again": lambda count: of([known] * count),
    }


def partitions(of: Callable[[list[tuple[str, list[int]]]], Values | bytes]) -> Mapping[str, Shape]:
    """Partitions that are asked for by topic and index."""
    return {
        "absent topics": lambda count: of([(name, [0]) for name in absent(count)]),
        "absent partitions": lambda count: of([(T, list(range(PARTITIONS, PARTITIONS + count)))]),
        "topic again": lambda count: of([(T, [0])] * count),
        "partition again": lambda count: of([(T, [0] * count)]),
        "absent topic again": lambda count: of([("absent", [0])] * count),
    }


def topics(name: str, parts: str, part: Callable[[int], Any], **more: Any) -> Mapping[str, Shape]:
    """Partitions in the field ``topics``."""
    return partitions(
        lambda asked: {
            "topics": [{name: topic, parts: [part(index) for index in indexes]} for topic, indexes in asked],
            **more,
        }
    )


def index_in(field: str, **more: Any) -> Callable[[int], Values]:
    return lambda index: {field: index, **more}


def indexes_of(index: int) -> int:
    return index


def once(**values: Any) -> Mapping[str, Shape]:
    """An API that asks for nothing in particular."""
    return {"once": lambda count: values}


def configs(**entry: Any) -> Mapping[str, Shape]:
    """Settings of resources; each shape is refused, so that nothing changes."""

    def resources(found: list[str]) -> Values:
        of_each = [{"name": "retention.ms", "value": "1", **entry}]
        return {"resources": [{"resource_type": 2, "resource_name": name, "configs": of_each} for name in found]}

    def entries(found: list[str]) -> Values:
        of_it = [{"name": name, "value": "1", **entry} for name in found]
        return {"resources": [{"resource_type": 2, "resource_name": T, "configs": of_it}]}

    return {**names(resources), **{f"entries {shape}": ask for shape, ask in names(entries, "retention.ms").items()}}


def list_entries(count: int) -> Values:
    """Items to append to a list of as many."""
    items = ",".join(f"{number}:1" for number in range(count))
    entry = {"name": "leader.replication.throttled.replicas", "value": items, "config_operation": 2}
    return {"resources": [{"resource_type": 2, "resource_name": T, "configs": [entry]}]}


def produce(asked: list[tuple[str, list[int]]]) -> bytes:
    batch = encode_batch([Record(b"v")])
    found = [TopicRecords(topic, ZERO_UUID, [PartitionRecords(index, batch) for index in of]) for topic, of in asked]
    return b"".join(encode_produce_request(12, ProduceRequest(None, 1, 0, found), correlation_id=7, client_id="cost"))


def fetch(asked: list[tuple[str, list[int]]]) -> bytes:
    found = [FetchTopic(topic, ZERO_UUID, [FetchPartition(index, 0, 100) for index in of]) for topic, of in asked]
    return encode_fetch_request(
        12, FetchRequest(0, 1, found, max_bytes=1 << 20, session_epoch=0), correlation_id=7, client_id="cost"
    )


SHAPES: dict[str, Mapping[str, Shape]] = {
    "Produce": partitions(produce),
    "Fetch": partitions(fetch),
    "ListOffsets": topics("name", "partitions", index_in("partition_index", timestamp=-1, current_leader_epoch=-1)),
    "Metadata": names(lambda found: {"topics": [{"name": name} for name in found]}),
    "OffsetCommit": topics(
        "name", "partitions", index_in("partition_index"), group_id=GROUP, generation_id_or_member_epoch=-1
    ),
    "OffsetFetch": {
        **partitions(
            lambda asked: {
                "groups": [
                    {"group_id": GROUP, "topics": [{"name": name, "partition_indexes": of} for name, of in asked]}
                ]
            }
        ),
        **names(lambda found: {"groups": [{"group_id": group, "topics": None} for group in found]}, GROUP),
    },
    "FindCoordinator": names(lambda found: {"coordinator_keys": found}, GROUP),
    "JoinGroup": names(
        lambda found: {
            "group_id": "joined",
            "session_timeout": timedelta(seconds=60),
            "rebalance_timeout": timedelta(seconds=60),
            "member_id": "unknown",
            "protocol_type": "consumer",
            "protocols": [{"name": name, "metadata": b""} for name in found],
        }
    ),
    "Heartbeat": once(group_id=GROUP),
    "LeaveGroup": names(lambda found: {"group_id": GROUP, "members": [{"member_id": name} for name in found]}),
    "SyncGroup": names(lambda found: {"group_id": GROUP, "assignments": [{"member_id": name} for name in found]}),
    "DescribeGroups": names(lambda found: {"groups": found}, GROUP),
    "ListGroups": names(lambda found: {"states_filter": found, "types_filter": found}),
    "ApiVersions": once(client_software_name="cost", client_software_version="1"),
    "CreateTopics": {
        **names(
            lambda found: {
                "topics": [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in found],
                "validate_only": True,
            }
        ),
        "assignments": lambda count: {
            "topics": [
                {
                    "name": "new",
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "assignments": [{"partition_index": index, "broker_ids": [1]} for index in range(count)],
                }
            ],
            "validate_only": True,
        },
        "configs": lambda count: {
            "topics": [{"name": "new", "configs": [{"name": name, "value": "1"} for name in absent(count)]}],
            "validate_only": True,
        },
    },
    "DeleteTopics": names(lambda found: {"topics": [{"name": name} for name in found]}, "absent"),
    "DeleteRecords": topics("name", "partitions", index_in("partition_index")),
    "InitProducerId": once(transactional_id=None),
    "OffsetForLeaderEpoch": topics("topic", "partitions", index_in("partition", current_leader_epoch=-1)),
    "DescribeConfigs": {
        **names(
            lambda found: {
                "resources": [{"resource_type": 2, "resource_name": name} for name in found],
                "include_synonyms": True,
                "include_documentation": True,
            }
        ),
        "keys": lambda count: {
            "resources": [{"resource_type": 2, "resource_name": T, "configuration_keys": absent(count)}]
        },
        "brokers": lambda count: {"resources": [{"resource_type": 4, "resource_name": "1"}] * count},
    },
    "AlterConfigs": configs(),
    "DescribeLogDirs": topics("topic", "partitions", indexes_of),
    "CreatePartitions": names(
        lambda found: {"topics": [{"name": name, "count": 1} for name in found], "validate_only": True}
    ),
    "DeleteGroups": names(lambda found: {"groups_names": found}, "absent"),
    "ElectLeaders": partitions(
        lambda asked: {"topic_partitions": [{"topic": topic, "partitions": of} for topic, of in asked]}
    ),
    "IncrementalAlterConfigs": {
        **configs(config_operation=0),
        "items": list_entries,
    },
    "AlterPartitionReassignments": topics("name", "partitions", index_in("partition_index", replicas=None)),
    "ListPartitionReassignments": topics("name", "partition_indexes", indexes_of),
    "OffsetDelete": topics("name", "partitions", index_in("partition_index"), group_id=GROUP),
    "DescribeCluster": once(endpoint_type=1),
    "DescribeProducers": topics("name", "partition_indexes", indexes_of),
    "DescribeTopicPartitions": names(
        lambda found: {"topics": [{"name": name} for name in found], "response_partition_limit": 2_000}
    ),
}
"""For each API what it may be asked for in numbers."""

VERSIONS = {"OffsetCommit": 9, "OffsetFetch": 9}
"""Where the newest version names topics by id only."""

CASES = [
    pytest.param(row, SHAPES[row.name][shape], id=f"{row.name}-{shape.replace(' ', '_')}")
    for row in TABLE
    for shape in SHAPES.get(row.name, {})
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with a topic, a group with an offset, and a producer that a partition remembers."""
    with Node(tmp_path_factory.mktemp("cost")) as node:
        node.create_topic(T, partitions=PARTITIONS)
        part = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
        commit = request(
            8, 9, group_id=GROUP, generation_id_or_member_epoch=-1, topics=[{"name": T, "partitions": [part]}]
        )
        finished(node, commit)
        gc.collect()
        gc.freeze()  # to collect what tests before these have left would cost more than what is measured
        yield node


def frame_of(row: ApiRow, shape: Shape, count: int) -> bytes:
    asked = shape(count)
    if isinstance(asked, bytes):
        return asked
    return request(row.key, VERSIONS.get(row.name, row.max_version), **{"timeout": NOTHING, **asked})


def finished(node: Node, frame: bytes) -> int:
    """Have the request answered; the size of the answer."""
    reply = node.answer(frame[4:], Connection("PLAINTEXT"))
    if isinstance(reply, DelayedReply):
        assert reply.wait(scaled(30))
        reply = reply.finish()
    if isinstance(reply, bytes):
        return len(reply)
    assert reply is not None
    for part in reply:
        if not isinstance(part, bytes):
            part.release()
    return sum(map(len, reply))


def cpu_s(answer: Callable[[bytes], object], frame: bytes) -> float:
    gc.collect()
    gc.disable()
    try:
        begun = time.process_time()
        answer(frame)
        return time.process_time() - begun
    finally:
        gc.enable()


def faster_than_linear(answer: Callable[[bytes], object], few: bytes, many: bytes) -> str:
    """How the time to answer grows, where it does so faster. The best of some tries counts: others keep the machine
    busy.
    """
    least, most = float("inf"), float("inf")
    for _ in range(TRIES):
        least, most = min(least, cpu_s(answer, few)), min(most, cpu_s(answer, many))
        if most <= MAX_RATIO * least + 0.002:
            return ""
    return f"{MANY} took {most * 1000:.1f} ms, {FEW} took {least * 1000:.1f} ms"


def test_each_api_has_a_case() -> None:
    assert SHAPES.keys() == {row.name for row in TABLE}


@pytest.mark.parametrize(("row", "shape"), CASES)
def test_time_is_linear(node: Node, row: ApiRow, shape: Shape) -> None:
    few, many = frame_of(row, shape, FEW), frame_of(row, shape, MANY)
    finished(node, frame_of(row, shape, 1))
    assert not faster_than_linear(lambda frame: finished(node, frame), few, many)


@pytest.mark.parametrize("api", ["Metadata", "FindCoordinator"])
def test_a_list_in_which_each_entry_is_looked_up_is_found(node: Node, api: str) -> None:
    row = next(row for row in TABLE if row.name == api)
    shape = SHAPES[api]["absent"]

    def answer(frame: bytes) -> None:
        finished(node, frame)
        seen: list[tuple[bytes, int]] = []
        for name in re.findall(rb"absent-\d+", frame):
            if (name, 0) not in seen:
                seen.append((name, 0))

    few, many = frame_of(row, shape, FEW), frame_of(row, shape, MANY)
    answer(frame_of(row, shape, 1))
    assert faster_than_linear(answer, few, many)


@pytest.mark.parametrize(("row", "shape"), CASES)
def test_memory_and_answer_are_bounded_by_the_request(node: Node, row: ApiRow, shape: Shape) -> None:
    frame = frame_of(row, shape, SOME)
    finished(node, frame)  # what is loaded and kept for all requests
    tracemalloc.start()
    try:
        size = finished(node, frame)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size <= MAX_ANSWER * len(frame) + MAX_REST
    assert peak <= MAX_MEMORY * len(frame) + MAX_REST
