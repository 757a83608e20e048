"""What `raylog up` may ask of a cluster that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from raylog.broker.launch.cluster_file import BrokerPlace, ClusterFile, RayInfo, ZooKeeperInfo
from raylog.broker.launch.up_request import Request, check_change
from raylog.protocol.errors import RaylogError


def running(zookeeper: str) -> ClusterFile:
    place = BrokerPlace(0, "broker-0", "10.0.0.1", 1, "/data/brokers/0", "10.0.0.1")
    info = ZooKeeperInfo(zookeeper, embedded=True)
    return ClusterFile("raylog-1", "/data", "raylog-1", RayInfo("10.0.0.1:1", "joined"), info, brokers=(place,))


def test_cluster_with_zookeeper_on_loopback_grows_on_its_node_only() -> None:
    request = Request(Path("/data"))
    check_change(running("127.0.0.1:2"), request, 3, "127.0.0.1")
    check_change(running("127.0.0.1:2"), request, 1, "10.0.0.1")
    check_change(running("10.0.0.1:2"), request, 3, "10.0.0.1")
    with pytest.raises(RaylogError, match=r"ZooKeeper on loopback.*`raylog down --data-dir /data` first"):
        check_change(running("127.0.0.1:2"), request, 3, "10.0.0.1")
