"""Brokers found on a Ray cluster.

They are named actors in a Ray namespace of their own, which begins with ``raylog-``. They are looked up in it; this
process's own namespace is left alone, since other libraries put actors of fixed names there.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from raylog.client.network.registry import KnownCluster
from raylog.coordination.host.ray_token import ray_token
from raylog.protocol.errors import BrokerNotAvailable
from raylog.protocol.texts import host_port

_NAMESPACE = "raylog-"
_ACTOR = re.compile(r"broker-(\d+)")
_DESCRIBE_TIMEOUT_S = 10.0


def join_ray(address: str | None, token_path: str = "") -> None:
    """Connect this process to a Ray cluster, unless it is connected to one. BrokerNotAvailable: it can't."""
    if ray.is_initialized():
        return
    try:
        with ray_token(token_path):
            ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, RayError, ValueError, RuntimeError) as error:
        raise BrokerNotAvailable(f"no Ray cluster at {address}: {error}") from error


def has_brokers() -> bool:
    """Whether this process is connected to a Ray cluster that brokers run on."""
    return ray.is_initialized() and bool(_namespaces())


def cluster_on_ray(address: str | None) -> KnownCluster:
    """The brokers of the Ray cluster that this process is connected to. BrokerNotAvailable."""
    found = _namespaces()
    if len(found) != 1:
        names = ", ".join(sorted(found)) or "none"
        raise BrokerNotAvailable(
            f"which raylog cluster on this Ray cluster ({names})? connect by data_dir or bootstrap_servers, "
            "or bring one up with `raylog up --address …`"
        )
    [(namespace, actors)] = found.items()
    address = address or ray.get_runtime_context().gcs_address
    try:
        brokers: list[Any] = [ray.get_actor(name, namespace=namespace) for _, name in sorted(actors.items())]
        asked = [broker.describe.remote() for broker in brokers]
        described: list[dict[str, Any]] = ray.get(asked, timeout=_DESCRIBE_TIMEOUT_S)
    except (RayError, ValueError) as error:
        raise BrokerNotAvailable(f"the brokers in Ray namespace {namespace!r} do not answer: {error}") from error
    servers = [host_port(facts["host"], facts["port"]) for facts in described if "port" in facts]
    if not servers:
        raise BrokerNotAvailable(f"no broker in Ray namespace {namespace!r} serves yet; try again in a moment")
    return KnownCluster(",".join(servers), namespace, address, "", actors, "")


def zookeeper_auth(connect: str) -> str:
    """The credentials for the ZooKeeper at ``connect`` from the brokers on the Ray cluster that this process is
    connected to; "" when there are none that use it, or it asks for none.
    """
    if not ray.is_initialized():
        return ""
    for namespace, actors in _namespaces().items():
        for name in actors.values():
            try:
                actor: Any = ray.get_actor(name, namespace=namespace)
                answer: str = ray.get(actor.zookeeper_auth.remote(connect), timeout=_DESCRIBE_TIMEOUT_S)
            except (RayError, ValueError, AttributeError):
                continue  # it is gone, or of an older release
            if answer:
                return answer
            break  # the others of this cluster use the same
    return ""


def _namespaces() -> dict[str, dict[int, str]]:
    """Per namespace of brokers, their actors' names by broker id."""
    found: dict[str, dict[int, str]] = {}
    for actor in list_named_actors(all_namespaces=True):
        namespace, name = actor["namespace"], actor["name"]
        match = _ACTOR.fullmatch(name)
        if namespace.startswith(_NAMESPACE) and match:
            found.setdefault(namespace, {})[int(match[1])] = name
    return found
