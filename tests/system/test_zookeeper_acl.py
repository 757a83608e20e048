"""Who gets at the znodes: who has the credentials, and nobody else; also at those that were open before."""

from __future__ import annotations

import logging
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import pytest
import ray
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

from kit.cli import RunningCluster
from kit.machine import scaled
from kit.ray_nodes import NODES, ray_nodes
from raylog.client import Admin, Consumer, Producer
from raylog.coordination.membership.registration import ensure_cluster
from raylog.coordination.store.port import (
    Create,
    Delete,
    SessionEvent,
    SessionState,
    Set,
    StoreEvent,
    StoreUnauthorized,
)
from raylog.coordination.zookeeper.auth import acl_of, close_tree
from raylog.coordination.zookeeper.credentials import new_credentials, read_credentials
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper
from raylog.coordination.zookeeper.store import ZkStore
from raylog.protocol.errors import InvalidConfig

pytestmark = pytest.mark.system

WAIT_S = 60.0


@contextmanager
def kazoo(address: str, credentials: str = "") -> Iterator[KazooClient]:
    """ZooKeeper's own kind of client."""
    client = KazooClient(address, auth_data=[("digest", credentials)] if credentials else None)
    client.start(timeout=scaled(15))
    try:
        yield client
    finally:
        client.stop()
        client.close()


def all_nodes(client: KazooClient, top: str = "/") -> list[str]:
    """All znodes from ``top`` on."""
    nodes = [top]
    for node in nodes:
        nodes += [f"{node.rstrip('/')}/{name}" for name in client.get_children(node)]
    return nodes


def assert_closed(address: str, credentials: str, top: str = "/") -> int:
    """Every znode has the one ACL, and every call of a stranger is refused; how many znodes there are."""
    with kazoo(address, credentials) as ours, kazoo(address) as stranger, kazoo(address, "raylog:guess") as guesser:
        nodes = all_nodes(ours, top)
        for node in nodes:
            assert ours.get_acls(node)[0] == acl_of(credentials), node
            for other in (stranger, guesser):
                calls: list[Callable[[], object]] = [
                    lambda: other.get(node),  # noqa: B023
                    lambda: other.get_children(node),  # noqa: B023
                    lambda: other.set(node, b"x"),  # noqa: B023
                    lambda: other.create(f"{node.rstrip('/')}/new"),  # noqa: B023
                    lambda: other.set_acls(node, OPEN_ACL_UNSAFE),  # noqa: B023
                ]
                if node != top and not node.startswith("/zookeeper"):  # which nobody may delete
                    calls.append(lambda: other.delete(node, recursive=False))  # noqa: B023
                for call in calls:
                    with pytest.raises(NoAuthError):
                        call()
    return len(nodes)


@pytest.fixture
def auth_file(tmp_path: Path) -> Path:
    new_credentials(tmp_path / "auth")
    return tmp_path / "auth"


@pytest.fixture
def server(tmp_path: Path, auth_file: Path) -> Iterator[EmbeddedZooKeeper]:
    embedded = EmbeddedZooKeeper(tmp_path / "zookeeper", auth_file=auth_file)
    embedded.start()
    yield embedded
    embedded.stop()


def test_every_znode_is_closed_to_strangers(server: EmbeddedZooKeeper, auth_file: Path) -> None:
    credentials = read_credentials(auth_file)
    with kazoo(server.address) as former:  # open, as an older release left them
        former.create("/brokers/topics/t/partitions/0/state", b"{}", makepath=True)
        former.create("/brokers/ids/0", b"{}", makepath=True, ephemeral=True)
        close_tree(server.address, credentials, whole=True)
        with ZkStore(server.address, auth=credentials) as store:
            ensure_cluster(store)
            store.create("/made/by/create", parents=True)
            store.create("/made/e-", ephemeral=True, sequence=True)
            store.ensure("/made/by/ensure")
            store.multi([Create("/made/by/multi", b"x"), Create("/made/by/gone"), Delete("/made/by/gone")])
            store.multi([Set("/made/by/multi", b"y", 0)])
            assert store.server_time_ms() > 0
            assert assert_closed(server.address, credentials) > 30


def test_store_without_the_credentials_says_so_in_one_line(server: EmbeddedZooKeeper, auth_file: Path) -> None:
    close_tree(server.address, read_credentials(auth_file), whole=True)
    for auth, says in (("", "asks for credentials, and none were given"), ("raylog:x", "refuses these credentials")):
        for chroot in ("", "/below"):
            with pytest.raises(StoreUnauthorized, match=f"{says}.*zookeeper.auth") as refused:
                ZkStore(f"{server.address}{chroot}", auth=auth).start()
            assert "\n" not in str(refused.value)
    with pytest.raises(StoreUnauthorized, match="belong to others"):
        close_tree(server.address, "raylog:x", whole=True)


def test_credentials_are_in_no_log(
    server: EmbeddedZooKeeper, auth_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    credentials = read_credentials(auth_file)
    close_tree(server.address, credentials, whole=True)
    with ZkStore(server.address, auth=credentials) as store:
        store.create("/a")
    assert "Sending request" in caplog.text
    logs = [file for file in server.data_dir.iterdir() if file.suffix in (".log", ".cfg")]
    for text in (caplog.text, *(file.read_text() for file in logs)):
        assert credentials.partition(":")[2] not in text


def test_credentials_are_presented_again_after_a_reconnect(server: EmbeddedZooKeeper, auth_file: Path) -> None:
    credentials = read_credentials(auth_file)
    close_tree(server.address, credentials, whole=True)
    with ZkStore(server.address, auth=credentials, session_timeout_ms=30_000) as store:
        session = store.session
        events: SimpleQueue[StoreEvent] = SimpleQueue()
        store.watch_session(events)
        jvm = server.jvm
        assert jvm is not None
        assert jvm.signal(signal.SIGKILL)
        seen = [events.get(timeout=scaled(WAIT_S))]
        while seen[-1] != SessionEvent(SessionState.CONNECTED, session.id):
            seen.append(events.get(timeout=scaled(WAIT_S)))
        store.multi([Create("/after", b"x")])
        assert store.session == session
    assert_closed(server.address, credentials)


def test_lost_credentials_are_replaced_at_the_next_start(server: EmbeddedZooKeeper, auth_file: Path) -> None:
    before = read_credentials(auth_file)
    close_tree(server.address, before, whole=True)
    with ZkStore(server.address, auth=before) as store:
        store.create("/kept", b"x")
    auth_file.unlink()
    new_credentials(auth_file)
    after = read_credentials(auth_file)
    assert after != before
    server.stop()
    server.start()
    close_tree(server.address, after, whole=True)
    assert_closed(server.address, after)
    with ZkStore(server.address, auth=after) as store:
        assert store.get("/kept") == (b"x", 0)


@pytest.mark.timeout(300)
def test_on_several_nodes_only_those_of_the_ray_cluster_get_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZooKeeper listens at a node's address; its znodes were open, as an older release left them."""

    def first_value(servers: str) -> bytes | None:
        """Read in a group, on a node where no file tells the credentials."""
        with Consumer(servers, "t", group_id="g", auto_offset_reset="earliest") as consumer:
            return next(iter(consumer)).value

    monkeypatch.setenv("RAYLOG_HOME", str(tmp_path / "nothing"))  # workers have it, too
    cluster = RunningCluster(tmp_path / "home", tmp_path / "data")
    former = EmbeddedZooKeeper(cluster.data_dir / "zookeeper")
    former.data_dir.mkdir(parents=True)
    former.start()
    with ZkStore(former.address) as store:
        ensure_cluster(store)
    former.stop()
    (tmp_path / "ray").mkdir()
    with ray_nodes(tmp_path / "ray") as address:
        try:
            cluster.raylog("up", "--address", address, "--brokers", "2")
            status, auth = cluster.status(), cluster.zookeeper_auth
            assert {broker["place"] for broker in status["brokers"]} == set(NODES)
            zookeeper, servers = status["zookeeper"], status["bootstrap_servers"]
            assert zookeeper.startswith(f"{NODES[0]}:")
            with Admin(servers) as admin:
                admin.create_topic("t", 2)
            with Producer(servers) as producer:
                producer.send("t", b"value").result(scaled(WAIT_S))
            assert assert_closed(zookeeper, auth) > 30
            with pytest.raises(StoreUnauthorized, match="asks for credentials, and none were given"):
                Consumer(servers, "t", group_id="g")
            with pytest.raises(StoreUnauthorized, match="refuses these credentials"):
                Consumer(servers, "t", group_id="g", zookeeper_auth="raylog:x")
            told = [line for line in cluster.raylog("doctor", check=False).stdout.splitlines() if "zookeeper" in line]
            assert told
            assert [line for line in told if not line.startswith("ok")] == []
            ray.init(address=address, log_to_driver=False, configure_logging=False)
            try:
                there: Any = ray.remote(num_cpus=0, resources={f"node:{NODES[1]}": 0.001})(first_value)
                assert ray.get(there.remote(servers), timeout=scaled(WAIT_S)) == b"value"
            finally:
                ray.shutdown()
            assert assert_closed(zookeeper, auth) > 30, "also what the member made"
            for process in psutil.process_iter(["cmdline"]):
                assert auth not in " ".join(process.info["cmdline"] or ())
        finally:
            cluster.raylog("down", check=False)


def test_of_a_shared_ensemble_only_our_own_nodes_are_closed(tmp_path: Path) -> None:
    shared = EmbeddedZooKeeper(tmp_path / "zookeeper")
    shared.start()
    try:
        with kazoo(shared.address) as other:
            other.create("/theirs/node", makepath=True)
            other.create("/brokers/ids", makepath=True)
            for connect, top in ((f"{shared.address}/a/b", "/a/b"), (shared.address, "/brokers")):
                close_tree(connect, "us:secret", whole=False)
                assert_closed(shared.address, "us:secret", top)
            for open_ in ("/", "/theirs", "/theirs/node"):
                assert other.get_acls(open_)[0] == OPEN_ACL_UNSAFE
    finally:
        shared.stop()


def test_credentials_are_their_owners_and_checked_without_being_told(tmp_path: Path) -> None:
    file = tmp_path / "auth"
    new_credentials(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kept = read_credentials(file)
    new_credentials(file)
    assert read_credentials(file) == kept
    for text in ("secret", "a:b\nc:d", ":secret", "secret:", ""):
        file.write_text(text)
        with pytest.raises(InvalidConfig, match="not user:password on one line") as refused:
            read_credentials(file)
        assert "secret" not in str(refused.value)
    with pytest.raises(InvalidConfig, match="No such file"):
        read_credentials(tmp_path / "absent")
