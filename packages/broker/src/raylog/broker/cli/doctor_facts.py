"""What `raylog doctor` looks up on a machine; it runs there, as a Ray task where that is another one."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from kio.schema.metadata.v4.request import MetadataRequest
from kio.schema.metadata.v4.response import MetadataResponse

from raylog.coordination.host.free_ports import check_port
from raylog.coordination.host.java import NoJava, find_java
from raylog.protocol.errors import RaylogError
from raylog.protocol.texts import host_port
from raylog.protocol.wire.messages import decode_response, encode_request

__all__ = ["Disk", "NodeFacts", "Question", "look"]

CONNECT_TIMEOUT_S = 3.0
_METADATA, _METADATA_VERSION = 3, 4


class Disk(NamedTuple):
    """Bytes of the file system that a directory is on."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be looked up on one machine."""

    directories: Sequence[str] = ()
    """Where brokers keep their data: their disks are looked at."""
    addresses: Sequence[tuple[str, str]] = ()
    """Addresses that clients are told, and the id of the cluster that should answer there."""
    pids: Mapping[int, int] | None = None
    """The processes of the brokers there, by broker id."""
    stopped: Sequence[str] = ()
    """Directories of brokers that do not run: their ports should be free."""
    is_ray_worker: bool = False


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What was found."""

    version: str
    """Of raylog."""
    java: str
    java_error: str
    java_on_path: bool
    is_ray_worker: bool
    file_limit: int
    """The hard limit of open files: what a broker raises its own to."""
    disks: Mapping[str, Disk]
    reached: Mapping[str, str]
    """By address, why it does not lead to the cluster; empty when it does."""
    open_files: Mapping[int, tuple[int, int]]
    """By broker id, how many files its process has open and how many it may."""
    taken_ports: Mapping[str, str]
    """Listeners of brokers that do not run whose address somebody else has."""


def look(question: Question) -> NodeFacts:
    """Look everything up here; what cannot be found out is left out, nothing is raised."""
    java, java_error = _java()
    return NodeFacts(
        version=version("raylog-broker"),
        java=java,
        java_error=java_error,
        java_on_path=shutil.which("java") is not None,
        is_ray_worker=question.is_ray_worker,
        file_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        disks={path: disk for path in question.directories if (disk := _disk(Path(path))) is not None},
        reached={address: _reach(address, cluster_id) for address, cluster_id in question.addresses},
        open_files={
            broker_id: files
            for broker_id, pid in (question.pids or {}).items()
            if (files := _open_files(pid)) is not None
        },
        taken_ports=dict(taken for path in question.stopped for taken in _taken_ports(Path(path))),
    )


def _java() -> tuple[str, str]:
    try:
        home = find_java()
    except NoJava as error:
        return "", str(error)
    return f"Java {home.version} in {home.path}", ""


def _disk(path: Path) -> Disk | None:
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return Disk(usage.free, usage.total)


def _open_files(pid: int) -> tuple[int, int] | None:
    try:
        used = len(os.listdir(f"/proc/{pid}/fd"))
        limit, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    except OSError:
        return None
    return used, limit


def _taken_ports(broker_dir: Path) -> list[tuple[str, str]]:
    """The kept ports of a stopped broker that it could not have now."""
    try:
        kept = json.loads((broker_dir / "ports.json").read_text())
        listeners = json.loads((broker_dir / "broker.json").read_text())["settings"]["listeners"].split(",")
        hosts = {
            text.partition("://")[0]: text.partition("://")[2].rpartition(":")[0].strip("[]") for text in listeners
        }
        wanted = [(f"{broker_dir} {name}", hosts[name], int(port)) for name, port in kept.items() if name in hosts]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    taken = []
    for name, host, port in wanted:
        try:
            check_port(host, port)
        except OSError as error:
            taken.append((name, f"{host_port(host, port)} cannot be listened at: {error.strerror or error}"))
    return taken


def _reach(address: str, cluster_id: str) -> str:
    """Why ``address`` does not lead to a broker of the cluster; empty when it does."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S) as connection:
            found = _cluster_behind(connection)
    except OSError as error:
        return str(error.strerror or error)
    except (RaylogError, ValueError) as error:
        return f"what answers there is no broker ({error})"
    return "" if found == cluster_id else f"a broker of another cluster ({found}) answers there"


def _cluster_behind(connection: socket.socket) -> str | None:
    """The id of the cluster whose broker is at the other end."""
    request = MetadataRequest(topics=(), allow_auto_topic_creation=False)
    connection.sendall(encode_request(request, 0, "raylog-doctor"))
    length = int.from_bytes(_exactly(connection, 4), "big")
    if not 0 < length <= 1 << 20:
        raise ValueError("its answer has no sensible length")
    _, response = decode_response(_METADATA, _METADATA_VERSION, _exactly(connection, length))
    assert isinstance(response, MetadataResponse)
    return response.cluster_id


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ValueError("it closed the connection")
        data += part
    return data
