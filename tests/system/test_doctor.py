"""`raylog doctor` on real clusters: a sound one, one in trouble, one that is down, and none."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.cli import RunningCluster, raylog_here
from kit.cluster import InProcessCluster
from kit.waiting import wait_until
from raylog.broker.cli.doctor import Finding, State, examine
from raylog.broker.cli.doctor_facts import Question, look
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]
WAIT_S = 30.0


def findings(cluster: RunningCluster, *, well: bool) -> list[Finding]:
    """What doctor says of the cluster; its exit code must fit."""
    done = cluster.here("doctor", "--output", "json", check=False)
    assert done.returncode == (0 if well else 1), done.stderr
    return [Finding(**{**row, "state": State(row["state"])}) for row in json.loads(done.stdout)]


@contextmanager
def stopped_zookeeper(cluster: RunningCluster) -> Iterator[None]:
    jvm = EmbeddedZooKeeper(cluster.data_dir / "zookeeper").jvm
    assert jvm is not None
    os.kill(jvm.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(jvm.pid, signal.SIGCONT)


def test_a_sound_cluster_passes_every_check(three_brokers: RunningCluster) -> None:
    found = findings(three_brokers, well=True)
    assert {finding.check for finding in found} >= {
        "ray", "zookeeper", "token", "broker", "open files", "listener", "clock", "java", "disk", "file limit",
    }  # fmt: skip
    told = {finding.found for finding in found if finding.check == "listener"}
    addresses = [address for broker in three_brokers.status()["brokers"] for address in broker["listeners"].values()]
    assert told >= {f"clients are told {address}; reached from local" for address in addresses}
    assert len(addresses) == 3
    table = three_brokers.raylog("doctor").stdout.splitlines()
    assert table[0].split() == ["state", "check", "subject", "found"]


def test_each_trouble_is_told_with_what_to_do(three_brokers: RunningCluster) -> None:
    token = Path(three_brokers.file()["ray"]["auth_token_path"])
    token.chmod(0o644)
    try:
        with stopped_zookeeper(three_brokers):

            def failed() -> list[Finding]:
                found = [finding for finding in findings(three_brokers, well=False) if finding.state is State.FAIL]
                checks = {finding.check for finding in found}
                assert checks >= {"zookeeper", "token"}
                return found if "broker" in checks else []

            troubles = wait_until(failed, WAIT_S, "brokers tell of it, too: their leases have lapsed", interval_s=0.5)
    finally:
        token.chmod(0o600)
    assert all(finding.advice for finding in troubles)
    wait_until(
        lambda: three_brokers.here("doctor", check=False).returncode == 0, WAIT_S, "all is well again", interval_s=0.5
    )


def test_a_cluster_that_is_down_is_told_what_hinders_it(tmp_path: Path) -> None:
    """As after a crash: the files are there, the processes are not, and somebody else took a port."""
    broker_dir = tmp_path / "brokers/0"
    broker_dir.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as thief:
        port = thief.getsockname()[1]
        (broker_dir / "ports.json").write_text(json.dumps({"A": port, "GONE": 1}))
        (broker_dir / "broker.json").write_text(json.dumps({"settings": {"listeners": "A://127.0.0.1:0"}}))
        facts = look(Question(stopped=(str(broker_dir), str(tmp_path / "no-broker"))))
        assert facts.taken_ports == {
            f"{broker_dir} A": f"127.0.0.1:{port} cannot be listened at: Address already in use"
        }
    assert look(Question(stopped=(str(broker_dir),))).taken_ports == {}


def test_an_address_must_lead_to_a_broker_of_the_cluster(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path) as cluster, socket.create_server(("127.0.0.1", 0)) as mute:
        address, cluster_id = cluster.brokers[0].address, cluster.brokers[0].describe()["cluster_id"]
        host, port = mute.getsockname()
        with socket.create_server(("127.0.0.1", 0)) as closed:
            refused = f"127.0.0.1:{closed.getsockname()[1]}"
        asked = [(address, cluster_id), (f"{host}:{port}", cluster_id), (refused, cluster_id)]
        reached = look(Question(addresses=asked)).reached
        assert reached == {address: "", f"{host}:{port}": "timed out", refused: "Connection refused"}
        [other] = look(Question(addresses=[(address, "another")])).reached.values()
        assert other == f"a broker of another cluster ({cluster_id}) answers there"


def test_where_there_is_no_cluster_the_machine_is_looked_at(tmp_path: Path) -> None:
    done = raylog_here(tmp_path, "doctor", "--output", "json")
    assert {row["check"] for row in json.loads(done.stdout)} == {"cluster", "java", "disk", "file limit"}
    refused = raylog_here(tmp_path, "doctor", "--data-dir", str(tmp_path / "none"), check=False)
    assert refused.returncode == 1
    assert "there is no raylog cluster" in refused.stderr


def test_nothing_to_examine_is_no_error() -> None:
    assert {finding.check for finding in examine(None)} == {"cluster", "java", "disk", "file limit"}
