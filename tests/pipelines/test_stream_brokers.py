"""What a stream's driver asks of real brokers, without Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.group_wire import WireMember
from kit.machine import scaled
from raylog.client import Admin, Producer
from raylog.client.ranges.offset_ranges import LogBounds
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition
from raylog.spark.reading.options import read_options
from raylog.spark.reading.stream_brokers import Progress, StreamBrokers

pytestmark = [pytest.mark.system, pytest.mark.timeout(60)]

WAIT_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path_factory.mktemp("brokers"), brokers=2) as running:
        yield running


def brokers(cluster: InProcessCluster, doubt_s: float = WAIT_S, **selection: str) -> StreamBrokers:
    return StreamBrokers(cluster.bootstrap_servers, read_options(selection, streaming=True), doubt_s=doubt_s)


def tp(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))


def send(cluster: InProcessCluster, topic: str, count: int) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for _ in range(count):
            producer.send(topic, b"v", partition=0)


def bounds(first: int, end: int) -> LogBounds:
    return LogBounds(Offset(first), Offset(end))


@pytest.mark.parametrize(
    "selection", [{"subscribe": "short"}, {"assign": '{"short": [0]}'}], ids=["topic", "partition"]
)
def test_a_log_that_ends_too_early_is_asked_again(cluster: InProcessCluster, selection: dict[str, str]) -> None:
    """As of a leader that does not know yet how far its predecessor was."""
    send(cluster, "short", 3)
    with Admin(cluster.bootstrap_servers) as admin:
        end = admin.list_offsets({("short", 0): -1})[tp("short")].offset
    asking = brokers(cluster, **selection)
    with ThreadPoolExecutor(1) as thread:
        looking = thread.submit(asking.look, {tp("short"): Offset(end + 2)})
        send(cluster, "short", 2)
        assert looking.result(scaled(WAIT_S)).bounds == {tp("short"): bounds(0, end + 2)}
    asking.close()


def test_a_partition_that_is_not_known_is_asked_for_again(cluster: InProcessCluster) -> None:
    """As of a broker that has just started."""
    cluster.create_topic("known")
    asking = brokers(cluster, subscribe="known,late")
    with ThreadPoolExecutor(1) as thread:
        looking = thread.submit(asking.look, {tp("known"): Offset(0), tp("late"): Offset(0)})
        cluster.create_topic("late", partitions=2)
        assert looking.result(scaled(WAIT_S)).bounds.keys() >= {tp("known"), tp("late")}
    asking.close()


def test_what_stays_away_is_gone(cluster: InProcessCluster) -> None:
    """And then it is not waited for again, until it is there again."""
    send(cluster, "left", 3)
    asking = brokers(cluster, doubt_s=0.2, subscribe="left,deleted")
    positions = {tp("left"): Offset(9), tp("deleted"): Offset(4)}
    assert asking.look(positions).bounds == {tp("left"): bounds(0, 3)}
    asking.close()


def test_a_pattern_may_match_nothing(cluster: InProcessCluster) -> None:
    asking = brokers(cluster, subscribePattern="nosuch.*")
    seen = asking.look()
    assert (seen.leaders, seen.topic_ids, seen.bounds) == ({}, {}, {})
    asking.close()


def test_progress_is_shown_as_offsets_of_a_group(cluster: InProcessCluster) -> None:
    send(cluster, "shown", 3)
    progress = Progress(cluster.bootstrap_servers, "shown-group")
    with Admin(cluster.bootstrap_servers) as admin:
        for offset in (2, 2, 3):
            progress.commit({tp("shown"): Offset(offset)})
            assert admin.list_group_offsets("shown-group")[tp("shown")].offset == offset
    progress.close()


def test_progress_that_cannot_be_shown_is_a_warning(
    cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A member of the group would commit over it."""
    send(cluster, "taken", 3)
    [host, port] = cluster.bootstrap_servers.split(",")[0].split(":")
    with WireMember("taken-group", lambda: [(host, int(port))]) as member:
        member.join()
        progress = Progress(cluster.bootstrap_servers, "taken-group")
        with caplog.at_level(logging.WARNING):
            for offset in (1, 2):
                progress.commit({tp("taken"): Offset(offset)})
        progress.close()
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    [record] = [record for record in warnings if record.name.startswith("raylog")]  # not with every batch
    assert "group 'taken-group' does not show the stream's progress for now" in record.getMessage()


def test_brokers_that_are_not_there_hold_progress_up_shortly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with InProcessCluster(tmp_path) as gone:
        servers = gone.bootstrap_servers
    progress = Progress(servers, "nobody")
    with caplog.at_level(logging.WARNING):
        progress.commit({tp("any"): Offset(1)})
    progress.close()
    assert "group 'nobody' does not show" in caplog.text
