"""Clusters that ``raylog up`` brought up on this machine: reads the files that it writes (their formats are
its contract).

``DATA_DIR/cluster.json`` tells everything about one cluster; ``$RAYLOG_HOME/clusters/NAME.json`` (default
``~/.raylog``) points to the data dir of each cluster that was not taken down.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raylog.client.config.texts import parse_address
from raylog.coordination.zookeeper.credentials import read_credentials
from raylog.protocol.errors import BrokerNotAvailable, InvalidConfig

_PROBE_S = 0.5


@dataclass(frozen=True, slots=True)
class KnownCluster:
    """What a client needs to know: of ``cluster.json``, or from the brokers themselves."""

    bootstrap_servers: str
    namespace: str
    """The Ray namespace of the broker actors."""
    ray_address: str
    ray_token_path: str
    """The file with the token that Ray asks for; empty when the environment knows."""
    actors: Mapping[int, str]
    """Actor names by broker id."""
    zookeeper_auth_path: str
    """The file with the credentials that its ZooKeeper asks for; empty when it asks for none."""


def cluster_in(data_dir: Path) -> KnownCluster:
    """The cluster of ``data_dir``. Raises BrokerNotAvailable when there is none."""
    path = data_dir.absolute() / "cluster.json"
    found = _read(path)
    if found is None:
        raise BrokerNotAvailable(
            f"there is no raylog cluster in {data_dir}; `raylog up --data-dir {data_dir}` makes one"
        )
    try:
        return KnownCluster(
            bootstrap_servers=found["bootstrap_servers"],
            namespace=found["namespace"],
            ray_address=found["ray"]["address"],
            ray_token_path=found["ray"].get("auth_token_path", ""),
            actors={broker["id"]: broker["actor"] for broker in found["brokers"]},
            zookeeper_auth_path=found.get("zookeeper", {}).get("auth_path", ""),
        )
    except (KeyError, TypeError) as error:
        raise BrokerNotAvailable(f"{path} is not of a cluster that came up: {error!r} is missing") from error


def zookeeper_auth(connect: str) -> str:
    """The credentials for the ZooKeeper at ``connect``, when a cluster that was brought up here uses it and this user
    may read them; else "".
    """
    for entry in _entries():
        zookeeper = (_read(Path(str(entry.get("data_dir", ""))) / "cluster.json") or {}).get("zookeeper", {})
        if zookeeper.get("connect") == connect and zookeeper.get("auth_path"):
            try:
                return read_credentials(Path(zookeeper["auth_path"]))
            except InvalidConfig:
                continue
    return ""


def only_running_cluster() -> KnownCluster:
    """The one cluster that runs on this machine. Raises BrokerNotAvailable when there is none, or when there
    are several."""
    running = sorted(str(entry["data_dir"]) for entry in _entries() if "data_dir" in entry and _runs(entry))
    if not running:
        raise BrokerNotAvailable(
            "no raylog cluster runs here; bring one up with `raylog up`, or give --data-dir or --bootstrap-server"
        )
    if len(running) > 1:
        raise BrokerNotAvailable(f"several clusters run here; choose by --data-dir: {', '.join(running)}")
    return cluster_in(Path(running[0]))


def _entries() -> list[dict[str, Any]]:
    home = Path(os.environ.get("RAYLOG_HOME") or Path.home() / ".raylog")
    return [entry for path in sorted((home / "clusters").glob("*.json")) if (entry := _read(path)) is not None]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _runs(entry: Mapping[str, Any]) -> bool:
    """True when one of its brokers takes connections."""
    for text in str(entry.get("bootstrap_servers", "")).split(","):
        try:
            socket.create_connection(parse_address(text), timeout=_PROBE_S).close()
        except (OSError, InvalidConfig):
            continue
        return True
    return False
