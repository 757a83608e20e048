"""`raylog topics reassign`, and the admin client under it: partitions move to other brokers, no faster than said."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from kit.cluster import InProcessCluster
from kit.commands import call, one_line, started
from kit.machine import scaled, scaled_ms
from kit.waiting import wait_until
from raylog.client import Admin, Producer
from raylog.client.admin import NewTopic
from raylog.protocol.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignmentInProgress,
    UnknownTopicOrPartition,
)

pytestmark = pytest.mark.system

WAIT_S = 30.0
TP = ("t", 0)
SLOW = "20000"
"""Bytes per second: moves of :func:`fill` take a minute, longer than any test waits."""
CONFIG = {"replica.fetch.max.bytes": "32768", "replica.fetch.backoff.ms": "50", "replica.lag.time.max.ms": "2000"}
THROTTLES = ("leader.replication.throttled", "follower.replication.throttled")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    """Three brokers, and a topic of two partitions on 0 and 1."""
    with InProcessCluster(tmp_path / "brokers", brokers=3, config=CONFIG) as running:
        yield running


@pytest.fixture
def admin(cluster: InProcessCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap_servers, default_api_timeout_ms=scaled_ms(10_000)) as found:
        created = found.create_topics([NewTopic("t", assignments={0: [0, 1], 1: [1, 0]})])
        assert created == {"t": None}
        yield found


def fill(cluster: InProcessCluster) -> None:
    """1.2 MB in the first partition."""
    with Producer(cluster.bootstrap_servers, acks="all") as producer:
        for _ in range(100):
            producer.send("t", bytes(12_000), partition=0)


Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def reassign(cluster: InProcessCluster) -> Run:
    """``raylog topics reassign ARGUMENTS`` on the cluster."""
    return partial(call, cluster, "topics", "reassign")


def rows(done: CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def replicas(admin: Admin) -> list[tuple[int, ...]]:
    return [tuple(partition.replicas) for partition in admin.describe_topic("t").partitions]


def wait_placed(admin: Admin, *wanted: tuple[int, ...]) -> None:
    """Until the first partitions have these replicas: the controller, which tells of moves, knows it before others."""
    wait_until(
        lambda: replicas(admin)[: len(wanted)] == list(wanted),
        WAIT_S,
        f"the replicas are {wanted}",
        instead=lambda: replicas(admin),
    )


def throttles(admin: Admin) -> dict[str, str | None]:
    """What is set to throttle the topic, or all brokers."""
    entries = [*admin.describe_topic_configs("t"), *admin.describe_broker_configs(None)]
    return {entry.name: entry.value for entry in entries if entry.name.startswith(THROTTLES) and not entry.is_default}


def test_an_admin_client_moves_partitions_and_is_told_why_not(admin: Admin) -> None:
    assert admin.list_partition_reassignments() == {}
    errors = admin.alter_partition_reassignments(
        {TP: [2, 1], ("t", 1): [0, 1, 2, 3], ("t", 7): [0], ("nosuch", 0): [0]}
    )
    assert {tp: type(error) for tp, error in errors.items()} == {
        TP: type(None),
        ("t", 1): InvalidReplicaAssignment,
        ("t", 7): UnknownTopicOrPartition,
        ("nosuch", 0): UnknownTopicOrPartition,
    }
    wait_until(lambda: replicas(admin) == [(2, 1), (1, 0)], WAIT_S, "the partition is where it was sent")
    wait_until(lambda: admin.list_partition_reassignments([TP, ("nosuch", 0)]) == {}, WAIT_S, "the move is complete")
    with pytest.raises(InvalidReplicaAssignment, match="none twice"):
        admin.alter_partition_reassignments({TP: [0, 0]})
    refused = [
        admin.alter_partition_reassignments({TP: [0, 1, 2]}, allow_replication_factor_change=False),
        admin.alter_partition_reassignments({TP: None}),
    ]
    assert [type(error) for errors in refused for error in errors.values()] == [
        InvalidReplicationFactor,
        NoReassignmentInProgress,
    ]


def test_a_topic_is_moved_once_it_was_seen_where_to(cluster: InProcessCluster, admin: Admin, reassign: Run) -> None:
    fill(cluster)
    command = ("t", "--replicas", "1,2")
    shown = reassign(*command)
    assert shown.returncode == 0
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["topic", "partition", "current", "proposed", "to_copy_bytes"],
        ["t", "0", "0,1", "1,2", str(admin.describe_log_dirs(0)[0].replicas[TP].size_bytes)],  # type: ignore[index]
        ["t", "1", "1,0", "2,1", "0"],
    ]
    assert "nothing was changed; add --yes to move 2 partitions" in shown.stderr
    assert replicas(admin) == [(0, 1), (1, 0)]

    done = reassign(*command, "--yes", "--wait")
    assert (done.returncode, done.stdout) == (0, shown.stdout), done.stderr
    assert done.stderr.splitlines() == ["moving 2 partitions", "2 partitions are in place"]
    wait_placed(admin, (1, 2), (2, 1))
    again = reassign(*command, "--yes", "--wait")
    assert (again.returncode, again.stdout) == (0, "")
    assert "there is nothing to move" in again.stderr
    nothing = reassign()
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "nothing is being moved\n")


def test_moves_come_from_a_file_and_bad_ones_are_refused(
    cluster: InProcessCluster, admin: Admin, reassign: Run
) -> None:
    def wanted(*entries: tuple[str, int, list[int]]) -> str:
        partitions = [{"topic": topic, "partition": index, "replicas": brokers} for topic, index, brokers in entries]
        path = cluster.root / "moves.json"
        path.write_text(json.dumps({"version": 1, "partitions": partitions}))
        return str(path)

    [row] = rows(
        reassign("--from-file", wanted(("t", 0, [0, 1]), ("t", 1, [2])), "--yes", "--wait", "--output", "json")
    )
    assert (row["topic"], row["partition"], row["current"], row["proposed"]) == ("t", 1, [1, 0], [2])
    wait_placed(admin, (0, 1), (2,))
    for entry, words in {
        ("nosuch", 0, (0,)): "nosuch",
        ("t", 2, (0,)): "there is no partition t-2; t has 0 to 1",
        ("t", 0, (0, 0)): "broker 0 is named twice",
        ("t", 0, (0, 1, 2, 3)): "broker 3 is not up; these are: 0, 1, 2",
    }.items():
        topic, index, brokers = entry
        one_line(reassign("--from-file", wanted((topic, index, list(brokers))), "--yes"), words)
    assert admin.list_partition_reassignments() == {}


def test_a_throttled_move_is_watched_and_lets_nothing_stay_behind(
    cluster: InProcessCluster, admin: Admin, reassign: Run
) -> None:
    fill(cluster)
    options = ("t", "--partition", "0", "--replicas", "2,1", "--yes", "--wait", "--throttle", SLOW)
    with started(cluster, "topics", "reassign", *options) as moving:
        wait_until(admin.list_partition_reassignments, WAIT_S, "the move is under way")
        settings = {
            "leader.replication.throttled.replicas": "0:0,0:1",
            "follower.replication.throttled.replicas": "0:2",
            "leader.replication.throttled.rate": SLOW,
            "follower.replication.throttled.rate": SLOW,
        }
        wait_until(lambda: throttles(admin) == settings, WAIT_S, "the throttle is set")

        def move_that_waits_for_2() -> Any:
            [row] = rows(reassign("--output", "json"))  # 1 may be out of the ISR for a while, where the machine stalls
            return row if row["waits_for"] == [2] else None

        row = wait_until(move_that_waits_for_2, WAIT_S, "the move waits for 2 alone")
        assert (sorted(row["current"]), row["proposed"]) == ([0, 1], [2, 1])
        assert 0 <= row["copied_bytes"] < row["to_copy_bytes"]
        kept = reassign("t", "--clear-throttle")
        assert "the throttle stays while partitions of t are being moved" in kept.stderr
        assert moving.poll() is None
        admin.alter_broker_configs(None, {name + ".rate": str(10**9) for name in THROTTLES})
        out, err = moving.communicate(timeout=scaled(WAIT_S))
    assert moving.returncode == 0, err
    assert err.splitlines() == ["moving 1 partition", "1 partition is in place", "nothing is throttled any more"]
    assert "0,1" in out
    wait_placed(admin, (2, 1), (1, 0))
    wait_until(lambda: throttles(admin) == {}, WAIT_S, "nothing is throttled")


def test_a_move_is_cancelled_by_another_command_and_who_waits_is_told(
    cluster: InProcessCluster, admin: Admin, reassign: Run
) -> None:
    fill(cluster)
    options = ("t", "--partition", "0", "--replicas", "2", "--yes", "--wait", "--throttle", SLOW)
    with started(cluster, "topics", "reassign", *options) as moving:
        wait_until(admin.list_partition_reassignments, WAIT_S, "the move is under way")
        [row] = rows(reassign("t", "--cancel", "--output", "json"))
        assert (row["current"], sorted(row["proposed"])) == ([2], [0, 1])
        assert len(admin.list_partition_reassignments()) == 1
        done = reassign("t", "--cancel", "--yes")
        assert "cancelled the moves of 1 partition" in done.stderr
        wait_until(
            lambda: sorted(replicas(admin)[0]) == [0, 1], WAIT_S, "it is where it was", instead=lambda: replicas(admin)
        )
        wait_until(lambda: throttles(admin) == {}, WAIT_S, "nothing is throttled")
        _, err = moving.communicate(timeout=scaled(WAIT_S))
    assert moving.returncode == 1
    assert "t-0: its move was cancelled, or replaced by another" in err.splitlines()[-1]
    none = reassign("t", "--cancel", "--yes")
    assert (none.returncode, none.stdout) == (0, "")


def test_a_topic_is_deleted_while_it_is_moved(cluster: InProcessCluster, admin: Admin, reassign: Run) -> None:
    fill(cluster)
    options = ("t", "--partition", "0", "--replicas", "2", "--yes", "--wait", "--throttle", SLOW)
    with started(cluster, "topics", "reassign", *options) as moving:
        wait_until(admin.list_partition_reassignments, WAIT_S, "the move is under way")
        assert admin.delete_topics(["t"]) == {"t": None}
        wait_until(lambda: not admin.list_partition_reassignments(), WAIT_S, "the move is over")
        _, err = moving.communicate(timeout=scaled(WAIT_S))
    assert moving.returncode == 1
    assert err.splitlines()[-1] == "raylog: t-0: topic t was deleted before the move was complete"
    wait_until(lambda: not admin.describe_broker_configs(None), WAIT_S, "the rate is taken away")
    wait_until(lambda: not list(cluster.root.glob("broker-2/**/t-0")), WAIT_S, "the replica is deleted")


def test_who_leaves_a_move_is_told_how_to_come_back(cluster: InProcessCluster, admin: Admin, reassign: Run) -> None:
    fill(cluster)
    options = ("t", "--partition", "0", "--replicas", "2", "--yes", "--wait", "--throttle", SLOW)
    with started(cluster, "topics", "reassign", *options) as moving:
        assert moving.stderr is not None
        assert moving.stderr.readline() == "moving 1 partition\n"
        moving.send_signal(signal.SIGINT)
        _, err = moving.communicate(timeout=scaled(WAIT_S))
    assert (moving.returncode, err.count("\n")) == (130, 1)
    assert "what has begun goes on; `raylog topics reassign --wait --clear-throttle` comes back to it" in err
    admin.alter_broker_configs(None, {name + ".rate": str(10**9) for name in THROTTLES})
    done = reassign("--wait", "--clear-throttle")
    assert done.returncode == 0, done.stderr
    wait_placed(admin, (2,))
    wait_until(lambda: throttles(admin) == {}, WAIT_S, "nothing is throttled")
