"""What ``raylog up`` writes down about a cluster, and where: the data dir and the registry of clusters.

``DATA_DIR/cluster.json`` tells everything; ``DATA_DIR/brokers/B/broker.json`` is all that broker B's actor
is given, on its own node. ``$RAYLOG_HOME/clusters/NAME.json`` (default ``~/.raylog``) points to the data
dir of each cluster that was brought up and not taken down, so that commands find the only one that runs.
The client reads the same files with a reader of its own: these formats are a contract, and ``version``
changes when they do.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from raylog.coordination.host.private_files import private_directory, write_private
from raylog.coordination.host.processes import ProcessRef
from raylog.coordination.zookeeper.credentials import read_credentials
from raylog.protocol.errors import RaylogError
from raylog.protocol.texts import host_port

__all__ = [
    "BrokerFile",
    "BrokerPlace",
    "ClusterFile",
    "RayInfo",
    "ZooKeeperInfo",
    "find_cluster",
    "raylog_home",
]

T = TypeVar("T")

VERSION = 1
PROBE_TIMEOUT_S = 0.5


class ClusterNotFound(RaylogError):
    """No cluster, or more than one, fits what was asked for."""


@dataclass(frozen=True, slots=True)
class RayInfo:
    """The Ray cluster that the brokers run on."""

    address: str
    """Of its GCS, ``host:port``."""
    mode: str
    """``local``: we started it, and end it; ``joined``: somebody else's."""
    dashboard_url: str = ""
    """Empty without a dashboard."""
    temp_dir: str = ""
    processes: str = ""
    """The file that names its processes when ``mode`` is local: an OwnSession's record."""
    head: ProcessRef | None = None
    """The GCS's process when ``mode`` is local: a start that was cut short may have written the record anew."""
    auth_token_path: str = ""
    """The file with the token that drivers present; empty when the environment's RAY_AUTH_MODE decides."""

    @property
    def is_local(self) -> bool:
        return self.mode == "local"

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        known = {name: value[name] for name in cls.__slots__ if name in value}
        return cls(**{**known, "head": ProcessRef(*value["head"]) if value.get("head") else None})


@dataclass(frozen=True, slots=True)
class ZooKeeperInfo:
    """Where the metadata is."""

    connect: str
    """``host:port,host:port/chroot``."""
    embedded: bool
    auth_path: str = ""
    """The file with the credentials that it asks for; empty when it asks for none."""

    @property
    def auth(self) -> str:
        """The credentials, ``user:password`` or "". Raises InvalidConfig when the file is not readable."""
        return read_credentials(Path(self.auth_path)) if self.auth_path else ""

    @property
    def host(self) -> str:
        """Where an embedded one listens."""
        return self.connect.rpartition(":")[0].strip("[]")


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """One broker of the cluster and where it is."""

    id: int
    actor: str
    host: str
    port: int
    data_dir: str
    place: str
    """The node's name: its label ``raylog.io/place`` or its address."""


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """``DATA_DIR/cluster.json``."""

    name: str
    data_dir: str
    namespace: str
    """The Ray namespace of the broker actors."""
    ray: RayInfo
    zookeeper: ZooKeeperInfo
    settings: Mapping[str, str] = field(default_factory=dict)
    """What `--config` set for all brokers, as text."""
    cluster_id: str = ""
    bootstrap_servers: str = ""
    brokers: tuple[BrokerPlace, ...] = ()
    version: int = VERSION

    @classmethod
    def load(cls, data_dir: Path) -> Self | None:
        """The file in ``data_dir``; None when there is none. RaylogError when it is not readable."""
        return _load(data_dir / "cluster.json", cls._from_json)

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        known = {name: value[name] for name in cls.__slots__ if name in value}
        known["ray"] = RayInfo._from_json(value["ray"])
        known["zookeeper"] = ZooKeeperInfo(**value["zookeeper"])
        known["brokers"] = tuple(BrokerPlace(**broker) for broker in value["brokers"])
        return cls(**known)

    def save(self) -> None:
        """Write ``cluster.json`` and the registry's entry."""
        write_json(Path(self.data_dir) / "cluster.json", asdict(self))
        entry = {name: getattr(self, name) for name in ("version", "name", "data_dir", "bootstrap_servers")}
        write_json(self._entry(), entry)

    def unregister(self) -> None:
        """Take the cluster out of the registry: it was taken down. ``cluster.json`` stays for the next up."""
        self._entry().unlink(missing_ok=True)

    def with_brokers(self, cluster_id: str, brokers: tuple[BrokerPlace, ...]) -> ClusterFile:
        """The same cluster with its brokers' final addresses."""
        servers = ",".join(host_port(broker.host, broker.port) for broker in brokers)
        return replace(self, cluster_id=cluster_id, brokers=brokers, bootstrap_servers=servers)

    def _entry(self) -> Path:
        return raylog_home() / "clusters" / f"{self.name}.json"


@dataclass(frozen=True, slots=True)
class BrokerFile:
    """``DATA_DIR/brokers/B/broker.json``: what a broker actor needs to start, and all that it is told."""

    broker_id: int
    namespace: str
    zookeeper: str
    zookeeper_auth: str = field(repr=False)
    """The credentials for it; "" when it asks for none."""
    host: str
    """The node's address, for listeners that take connections at all addresses."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Broker settings as text, by Kafka's names."""
    version: int = VERSION

    @property
    def actor(self) -> str:
        return actor_name(self.broker_id)

    @classmethod
    def load(cls, broker_dir: Path) -> Self:
        """The file in ``broker_dir``. Raises RaylogError when it is missing or not readable."""
        path = broker_dir / "broker.json"
        loaded = _load(path, cls._from_json)
        if loaded is None:
            raise RaylogError(f"{path} is missing: this is no broker's data dir, or its disk was lost")
        return loaded

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        known = {name: value[name] for name in cls.__slots__ if name in value}
        return cls(**{"zookeeper_auth": "", **known})

    def save(self, broker_dir: Path) -> None:
        private_directory(broker_dir)
        write_json(broker_dir / "broker.json", asdict(self))


def actor_name(broker_id: int) -> str:
    """The name of a broker's actor in the cluster's namespace."""
    return f"broker-{broker_id}"


def new_name() -> str:
    """A cluster's name: unique among all on one Ray cluster, short enough for paths."""
    return f"raylog-{secrets.token_hex(4)}"


def raylog_home() -> Path:
    """Where the registry is: ``$RAYLOG_HOME``, else ``~/.raylog``."""
    return Path(os.environ.get("RAYLOG_HOME") or Path.home() / ".raylog").absolute()


def find_cluster(data_dir: Path | None, bootstrap_server: str | None = None) -> ClusterFile:
    """The cluster in ``data_dir``, or the one with a broker at ``bootstrap_server``, or the only one that runs.

    Raises ClusterNotFound, saying what to do, when there is none or when there are several.
    """
    if data_dir is not None:
        found = ClusterFile.load(data_dir.absolute())
        if found is None:
            raise ClusterNotFound(
                f"there is no raylog cluster in {data_dir}; `raylog up --data-dir {data_dir}` makes one"
            )
        return found
    if bootstrap_server is not None:
        for cluster in registered():
            if set(bootstrap_server.split(",")) & set(cluster.bootstrap_servers.split(",")):
                return cluster
        raise ClusterNotFound(f"no raylog cluster that was brought up here has a broker at {bootstrap_server}")
    running = [cluster for cluster in registered() if is_running(cluster)]
    if not running:
        raise ClusterNotFound("no raylog cluster runs here; `raylog up` starts one")
    if len(running) > 1:
        where = ", ".join(cluster.data_dir for cluster in running)
        raise ClusterNotFound(f"several raylog clusters run here: choose one by --data-dir ({where})")
    return running[0]


def registered() -> list[ClusterFile]:
    """All clusters that were brought up and not taken down, as far as their files are readable."""
    clusters = []
    for entry in sorted((raylog_home() / "clusters").glob("*.json")):
        try:
            value = json.loads(entry.read_text())
            cluster = ClusterFile.load(Path(value["data_dir"]))
        except (OSError, ValueError, KeyError, TypeError, RaylogError):
            continue  # somebody else's, or half removed: no cluster of ours
        if cluster is not None and cluster.name == entry.stem:
            clusters.append(cluster)
    return clusters


def is_running(cluster: ClusterFile) -> bool:
    """True when a broker of the cluster accepts connections."""
    return any(accepts(broker.host, broker.port) for broker in cluster.brokers)


def accepts(host: str, port: int) -> bool:
    """True when something listens there."""
    try:
        socket.create_connection((host, port), PROBE_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def write_json(path: Path, value: object) -> None:
    """Replace the file in one step; its directory is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, json.dumps(value, indent=2) + "\n")


def _load(path: Path, parse: Callable[[dict[str, Any]], T]) -> T | None:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RaylogError(f"{path} cannot be read: {error}") from error
    version = value.get("version")
    if version != VERSION:
        raise RaylogError(f"{path} has format {version!r}; this raylog reads format {VERSION}")
    try:
        return parse(value)
    except (KeyError, TypeError) as error:
        raise RaylogError(f"{path} is damaged: {error!r}") from error
