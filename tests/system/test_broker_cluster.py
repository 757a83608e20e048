"""Brokers without Ray: several in one process, with real sockets and files and a metadata store in memory."""

from __future__ import annotations

import shutil
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled, scaled_ms
from kit.waiting import wait_until
from raylog.coordination.store.memory import MemoryStore
from raylog.protocol.errors import (
    BrokerNotAvailable,
    InvalidRequiredAcks,
    NotController,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RaylogError,
    StorageError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import Record, encode_batch

WAIT_S = 10.0


def batch(*values: bytes) -> bytes:
    return encode_batch([Record(value, timestamp=1_000) for value in values])


def values(cluster: InProcessCluster, topic: str, partition: int = 0) -> list[bytes | None]:
    records, _ = cluster.leader(topic, partition).fetch(topic, partition, 0, 1 << 20)
    assert isinstance(records, list)
    return [record.value for record in records]


def test_partitions_are_spread_evenly_and_served_by_their_leaders(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, brokers=3) as cluster:
        cluster.create_topic("flights", partitions=6)
        leaders = [cluster.leader("flights", partition).broker_id for partition in range(6)]
        assert sorted(leaders) == [0, 0, 1, 1, 2, 2]
        for partition in range(6):
            leader = cluster.leader("flights", partition)
            assert leader.produce("flights", partition, batch(b"a", b"b")) == (0, 1)
            assert values(cluster, "flights", partition) == [b"a", b"b"]
        other = next(broker for broker in cluster.brokers.values() if broker.broker_id != leaders[0])
        with pytest.raises(NotLeaderOrFollower, match=f"broker {leaders[0]} leads it"):
            other.produce("flights", 0, batch(b"c"))


def test_calls_are_refused_with_the_fitting_error(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path) as cluster:
        cluster.create_topic("t")
        broker = cluster.leader("t", 0)
        with pytest.raises(UnknownTopicOrPartition):
            broker.produce("t", 1, batch(b"a"))
        with pytest.raises(InvalidRequiredAcks):
            broker.produce("t", 0, batch(b"a"), acks=2)
        with pytest.raises(OffsetOutOfRange):
            broker.fetch("t", 0, 1, 1 << 20)
        with pytest.raises(TopicAlreadyExists):
            cluster.create_topic("t")
    with pytest.raises(BrokerNotAvailable):
        broker.describe()


def test_a_restarted_broker_has_its_port_its_records_and_a_higher_epoch(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path) as cluster:
        cluster.create_topic("t", config={"segment.bytes": "1000"})
        address, epoch = cluster.brokers[0].address, cluster.brokers[0].describe()["broker_epoch"]
        cluster.leader("t", 0).produce("t", 0, batch(b"before"))
        cluster.restart(0)
        assert cluster.brokers[0].address == address
        assert cluster.brokers[0].describe()["broker_epoch"] > epoch
        assert values(cluster, "t") == [b"before"]
        assert cluster.leader("t", 0).produce("t", 0, batch(b"after")) == (1, 1)
        settings = cluster.brokers[0].partitions.topic(TopicName("t"))
        assert settings.overrides == {"segment.bytes": 1000}


def test_another_broker_becomes_the_controller(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, brokers=2) as cluster:
        first = cluster.controller
        other = next(broker for broker in cluster.brokers.values() if broker is not first)
        with pytest.raises(NotController):
            other.topics.delete_topics([TopicName("t")], timeout_ms=1000)
        cluster.stop(first.broker_id)
        wait_until(lambda: other.is_controller, WAIT_S, "the other broker is elected")
        cluster.create_topic("t")
        assert cluster.leader("t", 0) is other


def test_a_partition_is_offline_while_its_broker_is_down(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, brokers=2) as cluster:
        cluster.create_topic("t", partitions=2)
        tp = TopicPartition(TopicName("t"), PartitionIndex(0))
        owner = cluster.leader("t", 0)
        owner.produce("t", 0, batch(b"kept"))
        cluster.stop(owner.broker_id)
        [left] = cluster.brokers.values()
        wait_until(lambda: left.partitions.state().leader_of(tp) == -1, WAIT_S, "the partition is offline")
        with pytest.raises(NotLeaderOrFollower, match="nobody leads it"):
            left.fetch("t", 0, 0, 1 << 20)
        cluster.start(owner.broker_id)
        assert values(cluster, "t") == [b"kept"]


def test_a_lost_session_is_replaced_with_a_higher_epoch(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path) as cluster:
        cluster.create_topic("t")
        broker, store = cluster.brokers[0], cluster.stores[0]
        epoch = broker.describe()["broker_epoch"]
        store.suspend()
        cluster.tree.expire(store.session.id)
        store.resume()
        wait_until(lambda: broker.describe()["broker_epoch"] > epoch, WAIT_S, "registered again")
        wait_until(lambda: broker.describe()["lease_held"], WAIT_S, "the lease is held again")
        assert cluster.leader("t", 0).produce("t", 0, batch(b"a")) == (0, 0)


def test_after_a_lost_session_nothing_is_served_before_the_controllers_word(tmp_path: Path) -> None:
    """In between another broker may have led: what this one led before it must not lead on its own."""
    with InProcessCluster(tmp_path, brokers=2) as cluster:
        cluster.create_topic("t", partitions=2)
        controller = cluster.controller
        other = next(broker for broker in cluster.brokers.values() if broker is not controller)
        partition = next(p for p in range(2) if cluster.leader("t", p) is other)
        store, epoch = cluster.stores[other.broker_id], other.describe()["broker_epoch"]
        cluster.cut_off.add(other.broker_id)
        cluster.tree.expire(store.session.id)
        wait_until(lambda: other.describe()["broker_epoch"] > epoch, WAIT_S, "registered again")
        heard = store.last_acknowledged_send_ms
        wait_until(lambda: store.last_acknowledged_send_ms != heard, WAIT_S, "the new session is renewed")
        with pytest.raises(NotLeaderOrFollower, match="controller"):
            other.produce("t", partition, batch(b"a"))
        cluster.cut_off.clear()
        wait_until(lambda: other.describe()["lease_held"], WAIT_S, "it may serve again")
        assert other.produce("t", partition, batch(b"a")) == (0, 0)


def test_a_broker_whose_id_was_taken_says_so_until_it_is_free(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path) as cluster, MemoryStore(cluster.tree) as other:
        broker, store = cluster.brokers[0], cluster.stores[0]
        registration = other.get("/brokers/ids/0")
        assert registration is not None
        assert broker.describe()["trouble"] == ""
        store.suspend()
        cluster.tree.expire(store.session.id)
        other.create("/brokers/ids/0", registration.data, ephemeral=True)
        store.resume()
        wait_until(lambda: "broker id 0 is registered by" in broker.describe()["trouble"], WAIT_S, "it says so")
        assert not broker.describe()["lease_held"]
        other.delete("/brokers/ids/0")
        wait_until(lambda: broker.describe()["lease_held"], WAIT_S, "it serves again")
        wait_until(lambda: broker.describe()["trouble"] == "", WAIT_S, "it says nothing any more")


def test_without_the_store_the_lease_lapses_and_the_broker_refuses(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, session_timeout_ms=scaled_ms(4_000)) as cluster:
        cluster.create_topic("t")
        broker = cluster.leader("t", 0)
        broker.produce("t", 0, batch(b"a"))
        cluster.stores[0].suspend()
        wait_until(lambda: not broker.describe()["lease_held"], WAIT_S, "the lease lapses")
        with pytest.raises(NotLeaderOrFollower, match="lost touch with the metadata store"):
            broker.produce("t", 0, batch(b"b"))
        with pytest.raises(NotLeaderOrFollower):
            broker.fetch("t", 0, 0, 1 << 20)
        cluster.stores[0].resume()
        wait_until(lambda: broker.describe()["lease_held"], WAIT_S, "the lease is held again")
        assert values(cluster, "t") == [b"a"]


def test_a_deleted_topic_is_gone_from_the_disk_and_may_come_again(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, brokers=2) as cluster:
        cluster.create_topic("t", partitions=2)
        cluster.leader("t", 0).produce("t", 0, batch(b"old"))
        assert list(cluster.controller.topics.delete_topics([TopicName("t")], timeout_ms=scaled_ms(10_000))) == ["t"]
        wait_until(
            lambda: not any(broker.partitions.state().topic(TopicName("t")) for broker in cluster.brokers.values()),
            WAIT_S,
            "every broker has forgotten it",
        )
        wait_until(lambda: not list(tmp_path.glob("broker-*/log/t-*")), WAIT_S, "its directories are gone")
        cluster.create_topic("t", partitions=2)
        assert values(cluster, "t") == []


def test_any_broker_can_have_a_topic_made(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, brokers=2, config={"num.partitions": "3"}) as cluster:
        other = next(broker for broker in cluster.brokers.values() if broker is not cluster.controller)
        for broker, name in ((other, "by-socket"), (cluster.controller, "here")):
            broker.topics.auto_create([TopicName(name)])
            wait_until(lambda name=name: other.partitions.state().topic(TopicName(name)), WAIT_S, f"{name} is there")
            state = other.partitions.state().topic(TopicName(name))
            assert state is not None
            assert len(state.partitions) == 3


def test_an_emptied_log_dir_is_told(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path) as cluster:
        cluster.create_topic("t")
        cluster.leader("t", 0).produce("t", 0, batch(b"lost"))
        [directory] = cluster.brokers[0]._opened().log_dirs.directory_ids().values()
        cluster.restart(0)
        assert cluster.brokers[0].describe()["missing_log_dirs"] == []
        cluster.stop(0)
        shutil.rmtree(tmp_path / "broker-0/log")
        broker = cluster.start(0)
        assert broker.describe()["missing_log_dirs"] == [directory]
        assert values(cluster, "t") == []


@pytest.mark.parametrize("replaced", [True, False])
def test_a_log_dir_that_is_emptied_under_the_broker_goes_offline(tmp_path: Path, replaced: bool) -> None:
    """Its lock is on a file that nobody finds any more, so another broker could take the directory."""
    with InProcessCluster(tmp_path) as cluster:
        cluster.create_topic("t")
        broker, log_dir = cluster.leader("t", 0), tmp_path / "broker-0/log"
        broker.produce("t", 0, batch(b"a"))
        shutil.rmtree(log_dir)
        if replaced:
            log_dir.mkdir()
            (log_dir / ".lock").touch()
        wait_until(lambda: broker.describe()["offline_log_dirs"], WAIT_S, "the directory is offline")
        with pytest.raises(StorageError, match="another broker may write here"):
            broker.produce("t", 0, batch(b"b"))


def test_an_append_that_outlives_the_lease_is_not_acknowledged(tmp_path: Path) -> None:
    """The lease is asked again before the reply (D9c): the write may be what took so long."""
    with InProcessCluster(tmp_path, session_timeout_ms=scaled_ms(4_000)) as cluster, ThreadPoolExecutor(1) as pool:
        cluster.create_topic("t")
        broker = cluster.leader("t", 0)
        [partition] = broker.partitions.led().values()
        with partition.log.lock:
            answer = pool.submit(broker.produce, "t", 0, batch(b"a"))
            cluster.stores[0].suspend()
            wait_until(lambda: not broker.describe()["lease_held"], WAIT_S, "the lease lapses")
            assert not answer.done()
        with pytest.raises(NotLeaderOrFollower, match="lost touch with the metadata store"):
            answer.result(scaled(WAIT_S))


def test_a_log_dir_has_one_broker(tmp_path: Path) -> None:
    config = {"log.dirs": str(tmp_path / "shared")}
    with InProcessCluster(tmp_path / "one", config=config) as cluster:
        cluster.create_topic("t")
        with pytest.raises(RaylogError, match="shared"), InProcessCluster(tmp_path / "two", config=config):
            pass
        assert cluster.leader("t", 0).produce("t", 0, batch(b"a")) == (0, 0)


def test_a_port_in_use_is_one_sentence_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path / "one") as cluster:
        address = cluster.brokers[0].address
        before = threading.active_count()
        config = {"listeners": f"PLAINTEXT://{address}"}
        with pytest.raises(RaylogError, match="in use"), InProcessCluster(tmp_path / "two", config=config):
            pass
        wait_until(lambda: threading.active_count() <= before, WAIT_S, "no thread is left")


def test_only_their_owner_gets_into_a_brokers_directories(tmp_path: Path) -> None:
    """Also into those that were open before, on the disks that log.dirs names."""
    (tmp_path / "broker-0").mkdir(mode=0o755)
    (tmp_path / "open").mkdir(mode=0o755)
    log_dirs = [tmp_path / "open", tmp_path / "new" / "disk"]
    with InProcessCluster(tmp_path, config={"log.dirs": ",".join(map(str, log_dirs))}) as cluster:
        cluster.create_topic("t", partitions=2)
        for path in (tmp_path / "broker-0", *log_dirs):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
