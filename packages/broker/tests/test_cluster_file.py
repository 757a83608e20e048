from __future__ import annotations

import json
from pathlib import Path

import pytest

from raylog.broker.launch.cluster_file import (
    BrokerFile,
    BrokerPlace,
    ClusterFile,
    ClusterNotFound,
    RayInfo,
    ZooKeeperInfo,
    find_cluster,
    registered,
)
from raylog.protocol.errors import RaylogError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYLOG_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def cluster(data_dir: Path, name: str = "raylog-1") -> ClusterFile:
    file = ClusterFile(
        name,
        str(data_dir),
        name,
        RayInfo("127.0.0.1:1", "local", processes="/nowhere"),
        ZooKeeperInfo("127.0.0.1:2", True),
    )
    return file.with_brokers("id", (BrokerPlace(0, "broker-0", "127.0.0.1", 3, str(data_dir), "local"),))


def test_a_cluster_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = cluster(tmp_path)
    written.save()
    assert ClusterFile.load(tmp_path) == written
    assert find_cluster(tmp_path) == written
    assert written.bootstrap_servers == "127.0.0.1:3"


def test_bootstrap_address_of_an_ipv6_host_has_brackets(tmp_path: Path) -> None:
    places = [BrokerPlace(index, f"broker-{index}", "::1", 29392 + index, str(tmp_path), "local") for index in (0, 1)]
    assert cluster(tmp_path).with_brokers("id", tuple(places)).bootstrap_servers == "[::1]:29392,[::1]:29393"


def test_the_registry_lists_what_was_brought_up_and_not_taken_down(tmp_path: Path, home: Path) -> None:
    one, two = cluster(tmp_path / "1", "raylog-1"), cluster(tmp_path / "2", "raylog-2")
    one.save()
    two.save()
    (home / "clusters" / "junk.json").write_text("{")
    assert registered() == [one, two]
    one.unregister()
    assert registered() == [two]
    assert ClusterFile.load(tmp_path / "1") == one


def test_no_cluster_is_one_sentence_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ClusterNotFound, match="`raylog up` starts one"):
        find_cluster(None)
    with pytest.raises(ClusterNotFound, match="raylog up --data-dir"):
        find_cluster(tmp_path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("{", "cannot be read"), (json.dumps({"version": 99}), "format 99"), (json.dumps({"version": 1}), "damaged")],
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(RaylogError, match=complaint):
        ClusterFile.load(tmp_path)


def test_a_broker_is_told_everything_by_its_directory(tmp_path: Path) -> None:
    file = BrokerFile(1, "raylog-1", "127.0.0.1:2", "raylog:x", "127.0.0.1", {"num.partitions": "3"})
    file.save(tmp_path / "1")
    assert BrokerFile.load(tmp_path / "1") == file
    assert file.actor == "broker-1"
    with pytest.raises(RaylogError, match="no broker's data dir"):
        BrokerFile.load(tmp_path / "2")
