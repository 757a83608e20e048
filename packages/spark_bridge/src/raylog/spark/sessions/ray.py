"""This process's place in the Ray cluster: connection, namespace, address, and the executors' share of the nodes."""

from __future__ import annotations

import logging
import socket
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import ray

from raylog.client.cluster import connect
from raylog.coordination.host.ray_token import ray_token
from raylog.spark.sessions.plan import Executors, NodeRoom, SparkNotStarted, check_total, occupied

PROBE_TIMEOUT_S = 5.0


def connect_ray(stack: ExitStack, address: str | None, data_dir: str | Path | None) -> str:
    """Connect this process to Ray, when it isn't, in a namespace of its own until ``stack`` unwinds.

    Returns the namespace. Raises SparkNotStarted when this process is connected to elsewhere already, or in a
    namespace where another Spark runs.
    """
    if not ray.is_initialized():
        token_path = ""
        if address is None:
            cluster = connect(data_dir=data_dir)
            address, token_path = cluster.ray_address or "auto", cluster.ray_token_path
        namespace = f"spark-{uuid4().hex[:12]}"
        try:
            probe(address)
            with ray_token(token_path):
                ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.WARNING)
        except OSError as error:
            raise SparkNotStarted(f"no Ray cluster at {address}: {error}") from error
        stack.callback(ray.shutdown)
        return namespace
    context = ray.get_runtime_context()
    if address is None and data_dir is not None:
        address = connect(data_dir=data_dir).ray_address
    if address not in (None, "auto") and not same_ray(address, context.gcs_address):
        raise SparkNotStarted(
            f"this process is connected to Ray at {context.gcs_address}, not {address}: call ray.shutdown() first"
        )
    if actors_in(context.namespace):
        raise SparkNotStarted(
            f"Ray namespace {context.namespace!r} of this process holds named actors, perhaps brokers or "
            "another Spark: connect with ray.init() in a namespace of its own, or not at all"
        )
    return str(context.namespace)


def same_ray(address: str, known: str) -> bool:
    """Whether ``address`` is the one that Ray knows as ``known``: it replaces loopback by the machine's."""
    host, _, port = address.rpartition(":")
    return address == known or (host in ("127.0.0.1", "localhost") and port == known.rpartition(":")[2])


def probe(address: str) -> None:
    """Raises OSError when nobody listens at ``address``, for which ray.init would wait for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=PROBE_TIMEOUT_S).close()


def actors_in(namespace: str) -> list[str]:
    """Names of the actors alive in a Ray namespace."""
    return [
        actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True) if actor["namespace"] == namespace
    ]


def node_address() -> str:
    """This node's address as the Ray cluster knows it; RayDP would take the machine's, perhaps another one."""
    node_id = ray.get_runtime_context().get_node_id()
    return str(next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == node_id))


def reserve(stack: ExitStack, wanted: Executors, timeout_s: float) -> str:
    """Take the executors' CPUs and memory, all or none, until ``stack`` unwinds: the placement group's id.

    Spread over the nodes as far as they have room, so that executors are near the data. What is reserved nobody
    else gets between here and the executors' start; a session that waits for the other half of another's would
    wait forever. Raises SparkNotStarted saying what is missing: at once when the nodes are too small, after
    ``timeout_s`` seconds when others use them.
    """
    check_total(wanted, rooms())
    group = ray.util.placement_group([dict(wanted.resources)] * wanted.count, strategy="SPREAD")
    stack.callback(ray.util.remove_placement_group, group)
    if not group.wait(timeout_s):
        raise occupied(wanted, rooms(), timeout_s)
    return str(group.id.hex())


def rooms() -> list[NodeRoom]:
    """What every alive node has, and has free."""
    free = ray._private.state.available_resources_per_node()
    return [
        NodeRoom(node["NodeManagerAddress"], node["Resources"], free.get(node["NodeID"], {}))
        for node in ray.nodes()
        if node["Alive"]
    ]
