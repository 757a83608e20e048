"""A broker that is killed comes back at once, for it ends its old session instead of waiting for it (D9c)."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit import register_and_hang
from kit.machine import scaled, scaled_ms
from kit.register_and_hang import BROKER
from kit.zookeeper import running_zookeeper
from raylog.coordination.membership.registration import BrokerRegistration, DuplicateBroker, SessionFile, ensure_cluster
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper
from raylog.coordination.zookeeper.store import ZkStore

pytestmark = pytest.mark.system


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    with running_zookeeper(tmp_path / "zookeeper") as server:
        yield server


@pytest.fixture
def store(zookeeper: EmbeddedZooKeeper) -> Iterator[ZkStore]:
    with ZkStore(zookeeper.address, session_timeout_ms=scaled_ms(60_000)) as store:
        ensure_cluster(store)
        yield store


@contextmanager
def another_process(zookeeper: EmbeddedZooKeeper, session_file: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that has registered the broker, and the epoch that it got."""
    command = [sys.executable, register_and_hang.__file__, zookeeper.address, str(session_file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def test_a_killed_broker_registers_again_at_once(zookeeper: EmbeddedZooKeeper, store: ZkStore, tmp_path: Path) -> None:
    session_file = tmp_path / "session"
    with another_process(zookeeper, session_file) as (process, epoch):
        process.kill()
        process.wait()
        with pytest.raises(DuplicateBroker):  # the naive way: its session has most of a minute to live
            BrokerRegistration(store, SessionFile(tmp_path / "no-session-kept")).register(BROKER)
        start = time.monotonic()
        again = BrokerRegistration(store, SessionFile(session_file)).register(BROKER)
        seconds = time.monotonic() - start
    assert again.epoch == epoch + 1
    assert seconds < scaled(5)
    print(f"registered {seconds * 1000:.0f} ms after the crash was noticed")


def test_a_live_brokers_session_is_not_taken_by_who_has_a_copy_of_its_dir(
    zookeeper: EmbeddedZooKeeper, store: ZkStore, tmp_path: Path
) -> None:
    session_file, copy = tmp_path / "session", tmp_path / "copy"
    with another_process(zookeeper, session_file) as (process, _):
        copy.write_bytes(session_file.read_bytes())
        with pytest.raises(DuplicateBroker):
            BrokerRegistration(store, SessionFile(copy)).register(BROKER)
        assert process.poll() is None
        assert store.exists("/brokers/ids/1") is not None


def test_the_password_is_for_the_owner_alone(store: ZkStore, tmp_path: Path) -> None:
    session_file = tmp_path / "session"
    BrokerRegistration(store, SessionFile(session_file)).register(BROKER)
    assert session_file.stat().st_mode & 0o077 == 0
