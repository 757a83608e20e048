"""Faults that the judge must find: each is put into a copy of our handlers, which is judged by Kafka's kept answers
(``make judge-proof``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

__all__ = ["PLANTED", "Planted", "planted_text", "prove"]

ROOT = Path(__file__).parents[2]
HANDLERS = Path("packages/broker/src/raylog/broker/handlers")


class Planted(NamedTuple):
    """One fault of one API: ``becomes`` stands where ``was`` stood, once, in the handler's file."""

    api: str
    file: str
    was: str
    becomes: str
    seen_by: str = ""
    """The API whose answers tell of it; "": its own."""


PLANTED = (
    Planted(
        "Produce",
        "records/produce.py",
        "if partition is not None and not isinstance(error, _WITHOUT_START)",
        "if False",
    ),
    Planted("Fetch", "fetch_sessions.py", "or found.log_start_offset != self.log_start", "or False"),
    Planted(
        "ListOffsets",
        "records/list_offsets.py",
        "return end, NO_TIMESTAMP, partition.role.leader_epoch",
        "return end, -1, -1",
    ),
    Planted("Metadata", "topics/metadata.py", 'name if ctx.version >= 12 else name or ""', 'name or ""'),
    Planted("OffsetFetch", "groups/offset_fetch.py", "=committed.leader_epoch", "=-1"),
    Planted("OffsetCommit", "groups/offset_commit.py", "if not offsets and not wrong:", "if not offsets:"),
    Planted(
        "OffsetForLeaderEpoch",
        "records/offset_for_leader_epoch.py",
        "ErrorCode.none, epoch, end)",
        "ErrorCode.none, 0, end)",
    ),
    Planted("JoinGroup", "groups/join_group.py", "joined.protocol_type or None", "joined.protocol_type"),
    Planted("LeaveGroup", "groups/leave_group.py", "group_instance_id=leaver.instance_id", "group_instance_id=None"),
    Planted("DescribeGroups", "groups/describe_groups.py", 'member.metadata if is_settled else b""', "member.metadata"),
    Planted("CreateTopics", "topics/create_topics.py", "read_only=is_read_only(row)", "read_only=True"),
    Planted(
        "DeleteTopics", "topics/delete_topics.py", "asked[at] = result, known.id", "asked[at] = result, NO_TOPIC_ID"
    ),
    Planted("DeleteRecords", "records/delete_records.py", "if offset == HIGH_WATERMARK else", "if offset < 0 else"),
    Planted("DescribeConfigs", "configs/describe_configs.py", "found if request.include_synonyms else ()", "found"),
    Planted(
        "IncrementalAlterConfigs",
        "configs/incremental_alter_configs.py",
        "if item not in asked",
        "if item in asked",
        "DescribeConfigs",
    ),
    Planted("InitProducerId", "records/init_producer_id.py", "== NO_PRODUCER_ID) != (", "== NO_PRODUCER_ID) < ("),
    # fields that are each broker's own
    Planted("FindCoordinator", "groups/find_coordinator.py", '"port": endpoint.port', '"port": endpoint.port + 1'),
    Planted("DescribeGroups", "groups/describe_groups.py", "client_host=member.client_host", 'client_host=""'),
    Planted("DescribeCluster", "cluster/describe_cluster.py", "cluster_id=state.cluster_id", 'cluster_id=""'),
    Planted("DescribeConfigs", "configs/describe_configs.py", "row.doc if with_documentation else None", "row.doc"),
    Planted("DescribeLogDirs", "cluster/describe_log_dirs.py", "total_bytes=facts.space.total", "total_bytes=-1"),
    Planted(
        "DescribeProducers",
        "records/describe_producers.py",
        "last_timestamp=producer.last_seen_ms",
        "last_timestamp=-1",
    ),
    Planted("ApiVersions", "__init__.py", 'ApiRow(1, "Fetch", 4, 18,', 'ApiRow(1, "Fetch", 4, 17,'),
    # what several things show, and what is between the edges
    Planted("Fetch", "fetch_sessions.py", "if by_id != session.by_id:", "if False:"),
    Planted(
        "Fetch",
        "records/fetch_read.py",
        "min(request.max_bytes, ports.configs.broker()[FETCH_MAX_BYTES])",
        "ports.configs.broker()[FETCH_MAX_BYTES]",
    ),
    Planted("ListOffsets", "records/list_offsets.py", "EARLIEST_LOCAL: 8", "EARLIEST_LOCAL: 7"),
    Planted("Metadata", "topics/metadata.py", "topic_operations(ctx, ports, name, error)", "OPERATIONS_UNKNOWN"),
    Planted(
        "OffsetCommit", "groups/offset_commit.py", "len(metadata.encode()) > limit", "len(metadata.encode()) >= limit"
    ),
    Planted(
        "DeleteTopics",
        "topics/delete_topics.py",
        "elif times[name, topic_id] > 1:",
        "elif name and times[name, topic_id] > 1:",
    ),
    Planted(
        "DeleteRecords",
        "records/delete_records.py",
        "for part in topic.partitions",
        "for part in reversed(topic.partitions)",
    ),
    Planted("CreatePartitions", "topics/create_partitions.py", "None if by_hand is None else", "None if True else"),
    Planted(
        "DescribeTopicPartitions",
        "topics/describe_topic_partitions.py",
        "begin = start[1] if topic.name == start[0] else 0",
        "begin = 0",
    ),
    # what a clock decides
    Planted(
        "JoinGroup",
        "../groups/classic/group.py",
        "for m in self.members if m.expires_ms <= now_ms and",
        "for m in self.members if False and",
        "DescribeGroups",
    ),
    Planted("JoinGroup", "../groups/classic/group.py", "if until > now_ms}", "}", "DescribeGroups"),
)


def planted_text(fault: Planted) -> str:
    """The handler's source with the fault in it. ValueError when what was there is not, or more than once."""
    text = (ROOT / HANDLERS / fault.file).read_text()
    if text.count(fault.was) != 1:
        raise ValueError(f"{fault.file} has {fault.was!r} {text.count(fault.was)} times: plant {fault.api} anew")
    return text.replace(fault.was, fault.becomes)


def prove() -> int:
    """1 when one of them is not found; each is judged in some ten seconds."""
    missed = [fault.api for fault in PLANTED if not _is_found(fault)]
    print(f"planted differences found: {len(PLANTED) - len(missed)} of {len(PLANTED)}", *missed, flush=True)
    return 1 if missed else 0


def _is_found(fault: Planted) -> bool:
    seen_by = fault.seen_by or fault.api
    with TemporaryDirectory() as copy:
        shutil.copytree(ROOT / "packages", Path(copy) / "packages", ignore=shutil.ignore_patterns("tests"))
        (Path(copy) / HANDLERS / fault.file).write_text(planted_text(fault))
        sources = map(str, Path(copy).glob("packages/*/src"))
        judging = subprocess.run(
            [sys.executable, "-m", "judge", "--replay", "--api", fault.api, seen_by],
            cwd=ROOT / "tests",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sources)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # where the fault is a defect, the broker says so each time
            text=True,
            check=False,
        )
    told = [line for line in judging.stdout.splitlines() if line.startswith(f"NEW: {seen_by} |")]
    print(f"{fault.api}: {told[0] if told else 'not found'}", flush=True)
    return bool(told)
