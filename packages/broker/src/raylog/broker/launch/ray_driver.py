"""The driver's side of Ray for commands: connecting, finding broker actors, asking them, running a task at a place."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from raylog.broker.launch import local_ray
from raylog.broker.launch.cluster_file import RayInfo, accepts, actor_name
from raylog.broker.launch.places import Place, find_places
from raylog.coordination.host.ray_token import ray_token
from raylog.protocol.errors import RaylogError

__all__ = ["actor", "actor_names", "describe", "driver", "own_address", "places", "run_at", "runs"]

T = TypeVar("T")

CALL_TIMEOUT_S = 10.0

_remote: Any = ray.remote


def runs(info: RayInfo) -> bool:
    """True while the Ray cluster is there."""
    return local_ray.is_whole(info) if info.is_local else answers_at(info.address)


def answers_at(address: str) -> bool:
    """False when ``address`` is a ``host:port`` where nothing listens; True also for what only Ray can resolve."""
    host, _, port = address.rpartition(":")
    return not port.isdecimal() or accepts(host, int(port))


@contextlib.contextmanager
def driver(info: RayInfo) -> Iterator[RayInfo]:
    """Connected to the Ray cluster, outside the brokers' namespace; gives ``info`` with its final addresses.

    Meanwhile stdout is stderr: Ray prints there when nodes or workers die, amid what a command answers.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    if not answers_at(info.address):  # Ray would try for minutes
        raise RaylogError(f"cannot connect to Ray at {info.address}: nothing listens there")
    try:
        with ray_token(info.auth_token_path):
            context: Any = ray.init(address=info.address, log_to_driver=False, configure_logging=False)
    except (RayError, ConnectionError, RuntimeError, ValueError) as error:
        first = str(error).strip().partition("\n")[0]
        raise RaylogError(f"cannot connect to Ray at {info.address}: {first}") from error
    with contextlib.redirect_stdout(sys.stderr):
        try:
            if info.is_local:
                yield info
            else:
                url = context.dashboard_url
                address = ray.get_runtime_context().gcs_address
                yield replace(info, address=address, dashboard_url=f"http://{url}" if url else "")
        finally:
            ray.shutdown()


def describe(namespace: str, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """What each broker says of itself, or the state «unreachable» and why."""
    calls = {}
    answers: dict[int, dict[str, Any]] = {}
    for broker_id in ids:
        handle = actor(namespace, broker_id)
        if handle is None:
            answers[broker_id] = {"state": "missing", "trouble": "its actor does not exist; `raylog up` makes it"}
        else:
            calls[broker_id] = handle.describe.remote()
    ray.wait(list(calls.values()), num_returns=len(calls), timeout=CALL_TIMEOUT_S) if calls else None
    for broker_id, call in calls.items():
        try:
            answers[broker_id] = ray.get(call, timeout=0)
        except RayError as error:
            first = str(error).strip().partition("\n")[0]
            answers[broker_id] = {"state": "unreachable", "trouble": first or type(error).__name__}
    return answers


def actor(namespace: str, broker_id: int) -> Any:
    """The broker's actor, or None."""
    try:
        return ray.get_actor(actor_name(broker_id), namespace=namespace)
    except ValueError:
        return None


def actor_names(namespace: str) -> list[str]:
    return [actor["name"] for actor in list_named_actors(all_namespaces=True) if actor["namespace"] == namespace]


def places(*, local: bool) -> Sequence[Place]:
    """The nodes of the Ray cluster, as brokers are pinned to them: see find_places."""
    return find_places(ray.nodes(), local=local)


def own_address() -> str:
    """The address of the node that this driver is connected through."""
    node_id = ray.get_runtime_context().get_node_id()
    return next(str(node["NodeManagerAddress"]) for node in ray.nodes() if node["NodeID"] == node_id)


def run_at(place: Place, function: Callable[..., T], *arguments: object, timeout_s: float) -> T:
    """``function(*arguments)``, in a process on the node of ``place``.

    Raises RaylogError when it cannot be run there, or fails.
    """
    task: Any = _remote(num_cpus=0, max_retries=0)(function)
    try:
        answer: T = ray.get(task.options(**place.options).remote(*arguments), timeout=timeout_s)
    except RayError as error:
        last = str(error).strip().rpartition("\n")[2]
        raise RaylogError(f"node {place.name} cannot run a broker (is raylog installed there?): {last}") from error
    return answer
