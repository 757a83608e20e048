"""`raylog up`, `down` and `status` with real processes: Ray, ZooKeeper and brokers."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from ray.util import list_named_actors

from kit.cli import RunningCluster, raylog_here
from kit.machine import scaled
from kit.waiting import wait_until
from raylog.broker.launch.cluster_file import accepts
from raylog.broker.launch.ray_driver import actor_names
from raylog.coordination.host.ray_token import ray_token
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper
from raylog.protocol.errors import NotLeaderOrFollower
from raylog.protocol.records import Record, encode_batch

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]
WAIT_S = 60.0


def token_of(cluster: RunningCluster) -> AbstractContextManager[None]:
    """Within it, this process and commands that it runs may connect to the cluster's Ray."""
    return ray_token(cluster.file()["ray"]["auth_token_path"])


@contextmanager
def driver(cluster: RunningCluster) -> Iterator[str]:
    """Connected to the cluster's Ray; gives the brokers' namespace."""
    file = cluster.file()
    with token_of(cluster):
        ray.init(address=file["ray"]["address"], namespace="tests", log_to_driver=False, configure_logging=False)
    try:
        yield file["namespace"]
    finally:
        ray.shutdown()


@contextmanager
def joined(host: RunningCluster, root: Path, *arguments: str) -> Iterator[RunningCluster]:
    """Another raylog cluster on the Ray cluster of ``host``."""
    address = host.file()["ray"]["address"]
    cluster = RunningCluster(root / "home", root / "data")
    with token_of(host):
        cluster.raylog("up", "--address", address, *arguments)
        try:
            yield cluster
        finally:
            cluster.raylog("down", check=False)


def create_topic(servers: str, name: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(scaled(WAIT_S))


def one_line(text: str) -> str:
    """The only line of what a command said on stderr."""
    [line] = text.strip().splitlines()
    assert line.startswith("raylog: ")
    return line


def test_status_tells_everything_that_clients_need(three_brokers: RunningCluster) -> None:
    status = three_brokers.status()
    assert {"cluster_id", "bootstrap_servers", "zookeeper", "dashboard_url", "brokers"} <= set(status)
    assert [broker["id"] for broker in status["brokers"]] == [0, 1, 2]
    for broker in status["brokers"]:
        assert {"id", "host", "port", "node", "pid", "partitions", "data_dir"} <= set(broker)
        assert broker["state"] == "serving"
        assert accepts(broker["host"], broker["port"])
        assert psutil.pid_exists(broker["pid"])
        assert Path(broker["data_dir"], "log", "meta.properties").exists()
    servers = ",".join(f"{broker['host']}:{broker['port']}" for broker in status["brokers"])
    assert status["bootstrap_servers"] == servers
    known = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=scaled(WAIT_S))
    assert known.cluster_id == status["cluster_id"]
    assert sorted(known.brokers) == [0, 1, 2]


def test_the_only_cluster_is_found_without_its_directory(three_brokers: RunningCluster) -> None:
    assert three_brokers.file()["cluster_id"] in raylog_here(three_brokers.home, "status").stdout


def test_up_twice_changes_nothing(three_brokers: RunningCluster) -> None:
    def brokers() -> list[dict[str, Any]]:
        """Without how much each leads: that changes by itself when the preferred replicas lead again."""
        return [{**broker, "partitions": None} for broker in three_brokers.status()["brokers"]]

    before = brokers()
    again = three_brokers.here("up")
    assert "is up already; nothing was changed" in one_line(again.stderr)
    assert brokers() == before


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--brokers", "2"), "cannot shrink"),
        (("--dashboard",), "runs without Ray's dashboard: `raylog down"),
        (("--config", "num.partitions=7"), "other settings"),
        (("--config", "no.such.setting=7"), "no.such.setting"),
        (("--config", "num.partitions=0"), "num.partitions"),
        (("--config", "broker.id=7"), "broker.id"),
        (("--config", "num.partitions"), "NAME=VALUE"),
    ],
)
def test_what_cannot_be_changed_is_refused(
    three_brokers: RunningCluster, arguments: tuple[str, ...], complaint: str
) -> None:
    refused = three_brokers.here("up", *arguments, check=False)
    assert refused.returncode == 1
    assert complaint in one_line(refused.stderr)


def test_actor_calls_produce_and_fetch(three_brokers: RunningCluster) -> None:
    servers = three_brokers.status()["bootstrap_servers"]
    create_topic(servers, "by-actor", partitions=3)
    topic = (
        AdminClient({"bootstrap.servers": servers}).list_topics("by-actor", timeout=scaled(WAIT_S)).topics["by-actor"]
    )
    leaders = {index: partition.leader for index, partition in topic.partitions.items()}
    assert sorted(leaders) == [0, 1, 2]
    batch = encode_batch([Record(b"a", timestamp=1), Record(b"b", timestamp=2)])
    with driver(three_brokers) as namespace:
        brokers = [ray.get_actor(f"broker-{n}", namespace=namespace) for n in range(3)]
        for partition, leader in leaders.items():
            broker, other = brokers[leader], brokers[(leader + 1) % 3]
            offsets = ray.get(broker.produce.remote("by-actor", partition, batch))
            records, high_watermark = ray.get(broker.fetch.remote("by-actor", partition, 0, 1 << 20))
            assert (offsets, high_watermark) == ((0, 1), 2)
            assert [record.value for record in records] == [b"a", b"b"]
            with pytest.raises(NotLeaderOrFollower, match=f"broker {leader} leads it"):
                ray.get(other.produce.remote("by-actor", partition, batch))
        facts: list[dict[str, Any]] = ray.get([broker.describe.remote() for broker in brokers])
        assert {fact["cluster_id"] for fact in facts} == {three_brokers.file()["cluster_id"]}


def test_a_killed_actor_is_missed_and_is_in_sync_again_when_it_is_back(three_brokers: RunningCluster) -> None:
    """Leaders and controller agree on it by actor calls, in both directions."""
    servers = three_brokers.status()["bootstrap_servers"]
    admin = AdminClient({"bootstrap.servers": servers})
    topic = NewTopic("replicated", 3, 3, config={"min.insync.replicas": "2"})
    admin.create_topics([topic])["replicated"].result(scaled(WAIT_S))

    def in_sync() -> list[int]:
        partitions = admin.list_topics("replicated", timeout=scaled(WAIT_S)).topics["replicated"].partitions
        return [len(partition.isrs) for partition in partitions.values()]

    failed: list[KafkaError] = []

    def sent(error: KafkaError | None, message: object) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": servers, "acks": "all", "retry.backoff.ms": 100})
    for number in range(300):
        if number == 100:
            with driver(three_brokers) as namespace:
                ray.kill(ray.get_actor("broker-1", namespace=namespace), no_restart=False)
        producer.produce("replicated", b"%d" % number, partition=number % 3, on_delivery=sent)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert failed == []
    wait_until(lambda: in_sync() == [3, 3, 3], 60, "the replicas that were away are in sync again")


def test_a_drained_broker_leads_nothing(three_brokers: RunningCluster) -> None:
    servers = three_brokers.status()["bootstrap_servers"]
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("drained", 3, 3)])["drained"].result(scaled(WAIT_S))

    def leaders() -> set[int]:
        partitions = admin.list_topics("drained", timeout=scaled(WAIT_S)).topics["drained"].partitions
        return {partition.leader for partition in partitions.values()}

    create_topic(servers, "alone", partitions=3)
    refused = raylog_here(three_brokers.home, "brokers", "drain", "2", check=False)
    assert refused.returncode == 1
    assert "partitions that nobody else can lead now" in one_line(refused.stderr)
    wait_until(lambda: leaders() == {0, 1}, WAIT_S, "others lead what they can")
    raylog_here(three_brokers.home, "brokers", "drain", "2", "--cancel")
    unknown = raylog_here(three_brokers.home, "brokers", "drain", "7", check=False)
    assert one_line(unknown.stderr) == "raylog: there is no broker 7 in this cluster; these are: 0, 1, 2"


def test_a_broker_that_is_stopped_lets_others_lead_first(three_brokers: RunningCluster) -> None:
    status = three_brokers.status()
    admin = AdminClient({"bootstrap.servers": status["bootstrap_servers"]})
    admin.create_topics([NewTopic("left", 3, 3)])["left"].result(scaled(WAIT_S))
    with driver(three_brokers) as namespace:
        stopped = ray.get_actor("broker-1", namespace=namespace)
        ray.get(stopped.stop.remote(), timeout=scaled(WAIT_S))
        assert "broker is drained" in Path(status["brokers"][1]["data_dir"], "broker.log").read_text()
        ray.kill(stopped)
        wait_until(lambda: "broker-1" not in actor_names(namespace), WAIT_S, "its actor is gone")
    three_brokers.raylog("up")


def test_broker_without_a_vital_thread_is_started_anew(three_brokers: RunningCluster) -> None:
    def end_thread(actor: Any) -> None:
        """In the actor's process: have the thread meet SystemExit."""
        [thread] = [thread for thread in threading.enumerate() if thread.name == "membership"]
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))

    before = three_brokers.status()["brokers"][1]
    assert before["state"] == "serving"
    with driver(three_brokers) as namespace:
        actor: Any = ray.get_actor("broker-1", namespace=namespace)
        ray.get(actor.__ray_call__.remote(end_thread), timeout=scaled(WAIT_S))

    def is_new() -> bool:
        now = three_brokers.status()["brokers"][1]
        return bool(now["state"] == "serving" and now["pid"] != before["pid"])

    wait_until(is_new, WAIT_S, "another process serves")
    log = Path(before["data_dir"], "broker.log").read_text()
    assert "thread has ended loop=membership" in log
    assert 'broker ends, to be started anew reason="thread membership has ended by SystemExit' in log


def test_a_killed_zookeeper_comes_back(three_brokers: RunningCluster) -> None:
    server = EmbeddedZooKeeper(three_brokers.data_dir / "zookeeper")
    before = server.jvm
    assert before is not None
    os.kill(before.pid, signal.SIGKILL)
    wait_until(lambda: server.jvm not in (None, before) and server.is_serving, WAIT_S, "ZooKeeper serves again")
    servers = three_brokers.status()["bootstrap_servers"]
    admin = AdminClient({"bootstrap.servers": servers})

    def created() -> bool:
        try:
            admin.create_topics([NewTopic("after-zookeeper", 3, 1)])["after-zookeeper"].result(scaled(WAIT_S))
        except KafkaException as error:
            return error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
        return True

    wait_until(created, WAIT_S, "a topic can be created")
    assert [broker["state"] for broker in three_brokers.status()["brokers"]] == ["serving"] * 3


def test_a_joined_ray_cluster_keeps_what_was_there(three_brokers: RunningCluster, tmp_path: Path) -> None:
    with driver(three_brokers):
        before = list_named_actors(all_namespaces=True)
    with joined(three_brokers, tmp_path, "--brokers", "2") as guest:
        status = guest.status()
        assert status["cluster_id"] != three_brokers.file()["cluster_id"]
        create_topic(status["bootstrap_servers"], "guests", partitions=2)
        examined = guest.raylog("doctor").stdout
        assert "reached from local, this machine" in examined
        zookeeper = EmbeddedZooKeeper(guest.data_dir / "zookeeper")
        guest.down()
        assert not zookeeper.is_running
        wait_until(
            lambda: not any(psutil.pid_exists(broker["pid"]) for broker in status["brokers"]),
            WAIT_S,
            "the guest's broker processes are gone",
        )
        down_again = guest.here("status", check=False)
        assert down_again.returncode == 1
    with driver(three_brokers):
        wait_until(
            lambda: sorted(map(str, list_named_actors(all_namespaces=True))) == sorted(map(str, before)),
            WAIT_S,
            "the actors are those of before",
            instead=lambda: (list_named_actors(all_namespaces=True), before),
        )
    assert [broker["state"] for broker in three_brokers.status()["brokers"]] == ["serving"] * 3


def test_a_zookeeper_of_the_users_own_is_used_below_its_chroot(three_brokers: RunningCluster, tmp_path: Path) -> None:
    connect = f"{three_brokers.file()['zookeeper']['connect']}/elsewhere/raylog"
    auth = ("--zookeeper-auth-file", three_brokers.file()["zookeeper"]["auth_path"])
    with joined(three_brokers, tmp_path, "--brokers", "1", "--zookeeper", connect, *auth) as guest:
        status = guest.status()
        assert status["zookeeper"] == connect
        assert status["cluster_id"] != three_brokers.file()["cluster_id"]
        assert not (guest.data_dir / "zookeeper").exists()
        assert guest.zookeeper_auth == three_brokers.zookeeper_auth
        create_topic(status["bootstrap_servers"], "elsewhere")
    owner = EmbeddedZooKeeper(three_brokers.data_dir / "zookeeper")
    assert owner.is_serving, "what we did not start we do not stop"


def test_a_port_in_use_is_one_sentence_and_leaves_nothing(three_brokers: RunningCluster, tmp_path: Path) -> None:
    taken = three_brokers.status()["brokers"][0]
    guest = RunningCluster(tmp_path / "home", tmp_path / "data")
    listeners = f"listeners=PLAINTEXT://{taken['host']}:{taken['port']}"
    address = three_brokers.file()["ray"]["address"]
    with driver(three_brokers):
        before = list_named_actors(all_namespaces=True)  # those of other tests' datasets among them
    with token_of(three_brokers):
        refused = guest.raylog("up", "--address", address, "--brokers", "1", "--config", listeners, check=False)
    assert refused.returncode == 1
    assert f"{taken['host']}:{taken['port']}" in one_line(refused.stderr)
    assert "in use" in refused.stderr
    assert not EmbeddedZooKeeper(guest.data_dir / "zookeeper").is_running

    def left() -> list[object]:
        return [actor for actor in list_named_actors(all_namespaces=True) if actor not in before]

    with driver(three_brokers):
        wait_until(lambda: not left(), WAIT_S, "no actor is left", instead=left)


def test_a_log_dir_of_another_broker_is_refused(three_brokers: RunningCluster, tmp_path: Path) -> None:
    log_dir = Path(three_brokers.status()["brokers"][0]["data_dir"], "log")
    guest = RunningCluster(tmp_path / "home", tmp_path / "data")
    address = three_brokers.file()["ray"]["address"]
    log_dirs = f"log.dirs={log_dir}"
    with token_of(three_brokers):
        refused = guest.raylog("up", "--address", address, "--brokers", "1", "--config", log_dirs, check=False)
    assert refused.returncode == 1
    assert str(log_dir) in one_line(refused.stderr)
    assert [broker["state"] for broker in three_brokers.status()["brokers"]] == ["serving"] * 3


def test_no_ray_at_the_address_is_one_sentence(tmp_path: Path) -> None:
    refused = raylog_here(tmp_path, "up", "--data-dir", str(tmp_path / "data"), "--address", "127.0.0.1:1", check=False)
    assert refused.returncode == 1
    assert "cannot connect to Ray at 127.0.0.1:1" in refused.stderr.strip().splitlines()[-1]


def test_the_dashboard_of_a_ray_cluster_that_is_joined_is_its_owners(tmp_path: Path) -> None:
    where = ("--data-dir", str(tmp_path / "data"), "--address", "127.0.0.1:1")
    refused = raylog_here(tmp_path, "up", *where, "--no-dashboard", check=False)
    assert refused.returncode == 1
    assert "127.0.0.1:1 was started by others" in one_line(refused.stderr)
