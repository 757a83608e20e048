"""`raylog topics alter`, `raylog configs` and `raylog brokers`, and the admin client under them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.cluster import InProcessCluster
from kit.commands import call, one_line
from kit.machine import scaled, scaled_ms
from kit.waiting import wait_until
from raylog.client import Admin, Producer
from raylog.client.admin import EARLIEST, EARLIEST_LOCAL, MAX_TIMESTAMP
from raylog.protocol.errors import (
    ElectionNotNeeded,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)

pytestmark = pytest.mark.system


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path / "brokers", brokers=2) as running:
        running.create_topic("t", partitions=2)
        yield running


@pytest.fixture
def admin(cluster: InProcessCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap_servers, default_api_timeout_ms=scaled_ms(10_000)) as found:
        yield found


def as_json(cluster: InProcessCluster, *arguments: str) -> Any:
    done = call(cluster, *arguments, "--output", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fill(cluster: InProcessCluster, count: int = 10) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for n in range(count):
            producer.send("t", b"v", partition=0, timestamp=1_000 + (n * 7) % count)


def overrides(admin: Admin) -> dict[str, str | None]:
    return {entry.name: entry.value for entry in admin.describe_topic_configs("t") if not entry.is_default}


def wait_overridden(admin: Admin, wanted: dict[str, str]) -> None:
    """Until the broker that is asked has heard of it: who changed it may have asked another one."""
    wait_until(lambda: overrides(admin) == wanted, 10, f"{wanted} is set", instead=lambda: overrides(admin))


def test_a_topic_grows(cluster: InProcessCluster, admin: Admin) -> None:
    admin.create_partitions("t", 5, validate_only=True)
    assert len(admin.describe_topic("t").partitions) == 2
    admin.create_partitions("t", 4)
    assert [partition.leader >= 0 for partition in admin.describe_topic("t").partitions] == [True] * 4
    admin.create_partitions("t", 6, assignments=[[1], [1]])
    assert [partition.replicas for partition in admin.describe_topic("t").partitions[4:]] == [(1,), (1,)]
    with Producer(cluster.bootstrap_servers) as producer:
        assert producer.send("t", b"v", partition=5).result(scaled(10)).offset == 0
    with pytest.raises(InvalidPartitions):
        admin.create_partitions("t", 6)
    with pytest.raises(UnknownTopicOrPartition):
        admin.create_partitions("nosuch", 6)


def test_settings_of_a_topic_are_set_deleted_and_checked(admin: Admin) -> None:
    admin.alter_topic_configs("t", {"retention.ms": "1000", "segment.bytes": "2000000"})
    wait_overridden(admin, {"retention.ms": "1000", "segment.bytes": "2000000"})
    admin.alter_topic_configs("t", {"retention.ms": None, "flush.messages": "1"}, validate_only=True)
    admin.alter_topic_configs("t", {"retention.ms": None})
    wait_overridden(admin, {"segment.bytes": "2000000"})
    with pytest.raises(InvalidConfig):
        admin.alter_topic_configs("t", {"retention.ms": "soon"})
    with pytest.raises(InvalidConfig):
        admin.alter_topic_configs("t", {"retention": "1"})
    (entry,) = [entry for entry in admin.describe_topic_configs("t") if entry.name == "segment.bytes"]
    assert (entry.source, entry.type, entry.is_sensitive) == ("topic", "int", False)
    assert entry.documentation


def test_settings_of_brokers_reach_them_without_a_restart(cluster: InProcessCluster, admin: Admin) -> None:
    admin.alter_broker_configs(None, {"log.retention.ms": "5000"})
    admin.alter_broker_configs(1, {"log.retention.ms": "7000"})

    def of(broker: int) -> tuple[str | None, str]:
        (entry,) = [found for found in admin.describe_broker_configs(broker) if found.name == "log.retention.ms"]
        return entry.value, entry.source

    wait_until(lambda: of(0) == ("5000", "cluster (dynamic)"), 10, "broker 0 follows the default of all")
    wait_until(lambda: of(1) == ("7000", "broker (dynamic)"), 10, "broker 1 has its own")
    assert {entry.name for entry in admin.describe_broker_configs(None)} == {"log.retention.ms"}


def test_records_are_deleted_up_to_an_offset(cluster: InProcessCluster, admin: Admin) -> None:
    fill(cluster)
    tp = ("t", 0)
    assert admin.delete_records({tp: 4}) == {tp: 4}
    assert admin.list_offsets({tp: EARLIEST})[tp].offset == 4  # type: ignore[index]
    with pytest.raises(OffsetOutOfRange):
        admin.delete_records({tp: 11})
    assert admin.delete_records({tp: -1}) == {tp: 10}
    with pytest.raises(UnknownTopicOrPartition):
        admin.delete_records({("t", 9): 0})


def test_offsets_at_the_highest_timestamp_and_on_the_own_disk(cluster: InProcessCluster, admin: Admin) -> None:
    fill(cluster)
    (found,) = admin.list_offsets({("t", 0): MAX_TIMESTAMP}).values()
    assert (found.offset, found.timestamp) == (7, 1_009)
    (found,) = admin.list_offsets({("t", 0): EARLIEST_LOCAL}).values()
    assert found.offset == 0


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (("topics", "alter", "t"), "topic t"),
        (("configs", "alter", "--topic", "t"), "topic t"),
        (("configs", "alter", "--broker", "0"), "broker 0"),
        (("configs", "alter", "--all-brokers"), "all brokers"),
    ],
)
def test_a_setting_that_is_none_cannot_be_taken_away(
    cluster: InProcessCluster, target: tuple[str, ...], told: str
) -> None:
    done = call(cluster, *target, "--config", "retention.ms=7", "--delete-config", "flush.mss")
    assert done.returncode != 0
    assert f"{told} has no setting 'flush.mss'" in done.stderr
    assert "7" not in {row["value"] for row in as_json(cluster, "configs", "describe", "--topic", "t")}, (
        "none is altered"
    )


def test_producers_and_log_dirs_are_described(cluster: InProcessCluster, admin: Admin) -> None:
    fill(cluster)
    (producers,) = admin.describe_producers([("t", 0)]).values()
    assert [(producer.last_sequence, producer.producer_epoch) for producer in producers] == [(9, 0)]
    assert producers[0].producer_id >= 0
    leader = admin.describe_topic("t").partitions[0].leader
    (log_dir,) = admin.describe_log_dirs(leader)
    assert log_dir.error is None
    assert log_dir.total_bytes > log_dir.usable_bytes > 0
    assert log_dir.replicas[("t", 0)].size_bytes > 61  # type: ignore[index]


def test_topics_and_settings_are_altered_by_commands(cluster: InProcessCluster) -> None:
    done = call(
        cluster,
        "topics",
        "alter",
        "t",
        "--partitions",
        "3",
        "--config",
        "retention.ms=1",
        "--delete-config",
        "flush.ms",
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "t has 3 partitions now" in done.stderr
    done = call(cluster, "configs", "alter", "--topic", "t", "--config", "retention.ms=2", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "can alter the settings of topic t: retention.ms\n")
    (row,) = wait_until(lambda: as_json(cluster, "configs", "describe", "--topic", "t"), 10, "that broker knows, too")
    assert {key: row[key] for key in ("name", "value", "source", "type")} == {
        "name": "retention.ms", "value": "1", "source": "topic", "type": "long",
    }  # fmt: skip
    table = call(cluster, "configs", "describe", "--topic", "t", "--all").stdout
    assert len(table.splitlines()) > 10
    assert call(cluster, "configs", "alter", "--all-brokers", "--config", "num.partitions=4").returncode == 0
    rows = wait_until(lambda: as_json(cluster, "configs", "describe", "--all-brokers"), 10, "that broker knows, too")
    assert [row["name"] for row in rows] == ["num.partitions"]
    one_line(call(cluster, "configs", "alter", "--topic", "t", "--config", "retention.ms=soon"), "retention.ms")
    one_line(call(cluster, "configs", "alter", "--broker", "1", "--config", "broker.id=2"), "broker.id")
    one_line(call(cluster, "topics", "alter", "t", "--partitions", "1"), "INVALID_PARTITIONS")


def test_brokers_are_listed_and_described(cluster: InProcessCluster) -> None:
    fill(cluster)
    rows = as_json(cluster, "brokers")
    assert [row["broker_id"] for row in rows] == [0, 1]
    assert [row["controller"] for row in rows].count(True) == 1
    assert [(row["leaders"], row["replicas"], len(row["log_dirs"])) for row in rows] == [(1, 1, 1), (1, 1, 1)]
    assert max(row["size_bytes"] for row in rows) > 61
    assert call(cluster, "brokers", "list").stdout.split()[:3] == ["broker_id", "host", "port"]
    facts = as_json(cluster, "brokers", "describe", "1")
    assert facts["log_dirs"][0]["state"] == "online"
    assert [row["topic"] for row in facts["partitions"]] == ["t"]
    assert "usable_bytes" in call(cluster, "brokers", "describe", "1").stdout
    for command in (["brokers", "describe", "9"], ["configs", "describe", "--broker", "9"]):
        one_line(call(cluster, *command), "broker 9 is not up", "0, 1")


def test_a_topic_is_trimmed(cluster: InProcessCluster) -> None:
    fill(cluster)
    assert as_json(cluster, "topics", "trim-prefix", "t", "--offset", "-1") == [
        {"partition": 0, "earliest": 10},
        {"partition": 1, "earliest": 0},
    ]
    one_line(call(cluster, "topics", "trim-prefix", "t", "--partition", "0", "--offset", "11"), "OFFSET_OUT_OF_RANGE")


def test_a_topic_is_created_on_chosen_brokers(cluster: InProcessCluster, admin: Admin) -> None:
    done = call(cluster, "topics", "create", "chosen", "--replica-assignment", "1:0,0:1,1:0")
    assert (done.returncode, done.stderr) == (0, "created chosen with 3 partitions\n")
    assert [partition.replicas for partition in admin.describe_topic("chosen").partitions] == [(1, 0), (0, 1), (1, 0)]
    admin.create_topic("also", assignments={0: [1]}, configs={"retention.ms": "1000"})
    assert admin.describe_topic("also").partitions[0].replicas == (1,)
    for assignments in ({0: [0, 0]}, {0: [0, 7]}, {1: [0]}, {0: [0], 1: [0, 1]}):
        with pytest.raises(InvalidReplicaAssignment):
            admin.create_topic("refused", assignments=assignments)


def test_partitions_in_trouble_are_picked_out_of_all_topics(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path / "brokers", brokers=2) as cluster:
        cluster.create_topic("alone", partitions=2)
        with Admin(cluster.bootstrap_servers, default_api_timeout_ms=scaled_ms(10_000)) as admin:
            admin.create_topic("both", 2, replication_factor=2)
            admin.create_topic("strict", 1, replication_factor=2, configs={"min.insync.replicas": "2"})

        def picked(*options: str) -> set[tuple[str, int]]:
            rows = as_json(cluster, "topics", "describe", *options)
            return {(row["topic"], row["partition"]) for row in rows}

        alone, both, strict = {("alone", 0), ("alone", 1)}, {("both", 0), ("both", 1)}, {("strict", 0)}
        assert picked("--under-replicated", "--under-min-isr", "--unavailable") == set()
        assert picked("--at-min-isr") == alone | strict
        one_line(call(cluster, "topics", "describe"), "which topic?")

        cluster.stop(1)
        wait_until(lambda: picked("--under-replicated") == both | strict, 20, "broker 1 is out of every ISR")
        # Draining takes it out of the ISRs; what it alone has is offline only when its end was noticed.
        lost = wait_until(lambda: picked("--unavailable"), 20, "what broker 1 alone has is offline")
        assert {topic for topic, _ in lost} == {"alone"}
        assert picked("--under-replicated", "--unavailable") == both | strict | lost
        assert picked("--under-min-isr") == strict
        assert picked("--at-min-isr") == alone | both
        assert picked("both", "--unavailable") == set()
        shown = call(cluster, "topics", "describe", "--under-min-isr").stdout.splitlines()
        assert shown[0].split() == ["topic", "partition", "leader", "leader_epoch", "replicas", "isr", "min_isr"]


def test_the_preferred_replica_leads_again_when_it_is_elected(tmp_path: Path) -> None:
    with (
        InProcessCluster(tmp_path / "brokers", brokers=2) as cluster,
        Admin(cluster.bootstrap_servers, default_api_timeout_ms=scaled_ms(10_000)) as admin,
    ):
        admin.create_topic("both", 1, replication_factor=2)
        first, second = admin.describe_topic("both").partitions[0].replicas

        def led_by(broker: int) -> bool:
            return admin.describe_topic("both").partitions[0].leader == broker

        (error,) = admin.elect_leaders([("both", 0)]).values()
        assert isinstance(error, ElectionNotNeeded)
        none = call(cluster, "topics", "elect-leaders", "both")
        assert (none.returncode, none.stdout) == (0, "")
        assert "every partition is led by its preferred replica" in none.stderr
        cluster.stop(first)
        wait_until(lambda: led_by(second), 20, "the other replica leads")
        failed = call(cluster, "topics", "elect-leaders", "both", "--partition", "0")
        assert (failed.returncode, failed.stdout.split()[-3:]) == (1, ["both", "0", "no"])
        assert "PREFERRED_LEADER_NOT_AVAILABLE" in failed.stderr
        cluster.start(first)
        wait_until(lambda: first in admin.describe_topic("both").partitions[0].isr, 20, "it has caught up")
        assert as_json(cluster, "topics", "elect-leaders") == [
            {"topic": "both", "partition": 0, "elected": True, "error": None}
        ]
        wait_until(lambda: led_by(first), 20, "the preferred replica leads")


def test_a_replica_that_lost_records_leads_only_when_it_is_told_to(tmp_path: Path) -> None:
    with (
        InProcessCluster(tmp_path / "brokers", brokers=3) as cluster,
        Admin(cluster.bootstrap_servers, default_api_timeout_ms=scaled_ms(10_000)) as admin,
    ):
        controller = cluster.controller.broker_id
        behind, last = (broker for broker in cluster.brokers if broker != controller)
        admin.create_topic("t", assignments={0: [last, behind]})

        def leader() -> int:
            return admin.describe_topic("t").partitions[0].leader

        cluster.stop(behind)
        wait_until(lambda: admin.describe_topic("t").partitions[0].isr == (last,), 20, "the last one in sync is left")
        cluster.stop(last)
        cluster.start(behind)
        wait_until(lambda: leader() == -1, 20, "nobody leads")
        preferred = call(cluster, "topics", "elect-leaders", "t")
        assert (preferred.returncode, preferred.stderr.count("\n")) == (1, 1)
        assert leader() == -1
        assert as_json(cluster, "topics", "elect-leaders", "t", "--unclean") == [
            {"topic": "t", "partition": 0, "elected": True, "error": None}
        ]
        wait_until(lambda: leader() == behind, 20, "the other one leads")
