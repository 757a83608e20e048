"""Keeps one broker actor per place: what should run, compared with what does. All Ray calls of `raylog up` are here.

:func:`up` may be repeated: it starts what is missing and leaves alone what runs. What it starts is written to
``cluster.json`` before it is relied on, so that :func:`down` finds it after a crash in between.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from raylog.broker.launch import local_ray, ray_driver
from raylog.broker.launch.actor import broker_actor_class
from raylog.broker.launch.cluster_file import (
    BrokerFile,
    BrokerPlace,
    ClusterFile,
    RayInfo,
    ZooKeeperInfo,
    actor_name,
    new_name,
)
from raylog.broker.launch.places import Place, place_for, zookeeper_host
from raylog.broker.launch.up_request import (
    Request,
    broker_settings,
    check_change,
    environment_for,
    external_zookeeper,
    settings_for,
)
from raylog.coordination.host.private_files import private_directory, write_private
from raylog.coordination.store.port import StoreUnauthorized
from raylog.coordination.zookeeper.auth import close_tree
from raylog.coordination.zookeeper.credentials import new_credentials, read_credentials
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper
from raylog.protocol.errors import BrokerNotAvailable, RaylogError

__all__ = ["Request", "down", "drain", "end_unfinished", "status", "up"]

DEFAULT_BROKERS = 3
UP_TIMEOUT_S = 90.0
TROUBLE_TIMEOUT_S = 4.0
"""How long a broker may report the same trouble before `up` gives up: a lock or a port may be about to be freed."""
CALL_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.05
AUTH_FILE = "zookeeper-auth"
"""In the data dir: the credentials for ZooKeeper."""


def up(request: Request) -> tuple[ClusterFile, bool]:
    """Bring the cluster up and return once clients can connect; and whether anything had to be started.

    Raises RaylogError in one sentence when it cannot be done; then what this call started is ended again.
    """
    data_dir = request.data_dir.absolute()
    private_directory(data_dir)
    with _only_one_up(data_dir), contextlib.ExitStack() as undo:
        before = ClusterFile.load(data_dir)
        settings = settings_for(request, before)
        size = request.brokers or (len(before.brokers) if before else 0) or DEFAULT_BROKERS
        name = before.name if before else new_name()
        with (
            ray_driver.driver(_find_or_start_ray(request, before, undo)) as connected,
            contextlib.ExitStack() as undo_actors,
        ):
            running = bool(ray_driver.actor_names(name))
            places = ray_driver.places(local=connected.is_local)
            host = zookeeper_host(places, ray_driver.own_address())
            if before and running:
                check_change(before, request, size, host)
                host = before.zookeeper.host
            cluster = ClusterFile(
                name=name,
                data_dir=str(data_dir),
                namespace=name,
                ray=connected,
                zookeeper=_find_or_start_zookeeper(data_dir, request, before, running, host, undo),
                settings=settings,
            )
            if before:
                cluster = cluster.with_brokers(before.cluster_id, before.brokers)
            if not running:
                undo.callback(cluster.unregister)
            cluster.save()
            created = _create_missing(cluster, size, places, undo_actors)
            cluster = _wait_until_serving(cluster, size)
            cluster.save()
            undo_actors.pop_all()
        undo.pop_all()
        return cluster, created


def status(cluster: ClusterFile) -> dict[str, Any]:
    """The cluster as `raylog status` shows it. Raises RaylogError when it is down."""
    if not ray_driver.runs(cluster.ray):
        raise _is_down(cluster)
    with ray_driver.driver(cluster.ray):
        answers = ray_driver.describe(cluster.namespace, [broker.id for broker in cluster.brokers])
    if all(answer["state"] == "missing" for answer in answers.values()):
        raise _is_down(cluster)
    return {
        "cluster_id": cluster.cluster_id,
        "name": cluster.name,
        "bootstrap_servers": cluster.bootstrap_servers,
        "zookeeper": cluster.zookeeper.connect,
        "zookeeper_auth_path": cluster.zookeeper.auth_path,
        "dashboard_url": cluster.ray.dashboard_url,
        "ray_address": cluster.ray.address,
        "ray_auth_token_path": cluster.ray.auth_token_path,
        "data_dir": cluster.data_dir,
        "brokers": [_broker_status(place, answers[place.id]) for place in cluster.brokers],
    }


def down(cluster: ClusterFile) -> None:
    """Stop the brokers in an orderly way, then what was started for them: ZooKeeper, and Ray if it is ours."""
    with _only_one_up(Path(cluster.data_dir)):
        if ray_driver.runs(cluster.ray):
            with ray_driver.driver(cluster.ray):
                _stop_brokers(cluster)
        if cluster.zookeeper.embedded:
            EmbeddedZooKeeper(Path(cluster.data_dir) / "zookeeper").stop()
        if cluster.ray.is_local:
            local_ray.stop(cluster.ray)
        cluster.unregister()


def end_unfinished(data_dir: Path) -> bool:
    """End what an `up` started that was killed before it wrote ``cluster.json``; False when nothing of it runs."""
    with _only_one_up(data_dir):
        zookeeper = EmbeddedZooKeeper(data_dir / "zookeeper")
        found = [local_ray.end_recorded(data_dir), bool(zookeeper.owner or zookeeper.jvm)]
        zookeeper.stop()
    return any(found)


def drain(cluster: ClusterFile, broker_id: int, timeout_s: float, *, cancel: bool) -> list[tuple[str, int]]:
    """Let others lead what a broker leads, or take that back; what nobody else can lead. Raises RaylogError."""
    if not ray_driver.runs(cluster.ray):
        raise _is_down(cluster)
    with ray_driver.driver(cluster.ray):
        handle = ray_driver.actor(cluster.namespace, broker_id)
        if handle is None:
            known = ", ".join(str(broker.id) for broker in cluster.brokers)
            raise BrokerNotAvailable(f"there is no broker {broker_id} in this cluster; these are: {known}")
        call = handle.cancel_drain.remote(timeout_s) if cancel else handle.drain.remote(timeout_s)
        try:
            remaining: list[tuple[str, int]] | None = ray.get(call, timeout=timeout_s + CALL_TIMEOUT_S)
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, RaylogError) else RaylogError(str(error)) from error
        except RayError as error:
            raise BrokerNotAvailable(f"broker {broker_id} does not answer: {error}") from error
    return remaining or []


def _is_down(cluster: ClusterFile) -> RaylogError:
    return RaylogError(f"the cluster is down; `raylog up --data-dir {cluster.data_dir}` brings it up")


@contextlib.contextmanager
def _only_one_up(data_dir: Path) -> Iterator[None]:
    with (data_dir / ".up.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RaylogError(f"another `raylog up` or `raylog down` is at work in {data_dir}") from None
        yield


# --- Ray and ZooKeeper ---


def _find_or_start_ray(request: Request, before: ClusterFile | None, undo: contextlib.ExitStack) -> RayInfo:
    """The Ray cluster that is asked for, or was used before, or a new local one."""
    environment = environment_for(needs_java=not external_zookeeper(request, before))
    had_dashboard = not (before and before.ray.is_local) or bool(before.ray.dashboard_url)
    if before and before.ray.is_local:
        if local_ray.is_whole(before.ray):
            if request.address not in (None, before.ray.address):
                where = f"the cluster in {before.data_dir}"
                raise RaylogError(f"{where} runs on a Ray cluster of its own: `raylog down` first")
            if request.dashboard not in (None, had_dashboard):
                where = (
                    f"the cluster in {before.data_dir} runs {'with' if had_dashboard else 'without'} Ray's dashboard"
                )
                raise RaylogError(f"{where}: `raylog down --data-dir {before.data_dir}` first")
            return before.ray
        local_ray.stop(before.ray)  # a part of it died: no driver gets in any more
    address = request.address or os.environ.get("RAY_ADDRESS")
    if before and not before.ray.is_local:
        address = address or before.ray.address
    if address:
        if request.dashboard is not None:
            raise RaylogError(f"the Ray cluster at {address} was started by others, with or without a dashboard")
        return RayInfo(address=address, mode="joined")
    dashboard = had_dashboard if request.dashboard is None else request.dashboard
    info = local_ray.start(request.data_dir.absolute(), environment, dashboard=dashboard)
    undo.callback(local_ray.stop, info)
    return info


def _find_or_start_zookeeper(
    data_dir: Path,
    request: Request,
    before: ClusterFile | None,
    running: bool,
    host: str,
    undo: contextlib.ExitStack,
) -> ZooKeeperInfo:
    """The ZooKeeper that is asked for, or was used before, or an embedded one; closed to all without its credentials.

    ``running``: brokers run, and have what they need to reach it as it was.
    """
    auth_file = data_dir / AUTH_FILE
    external = external_zookeeper(request, before)
    if external:
        same = before.zookeeper if before and before.zookeeper.connect == external else None
        auth = request.zookeeper_auth or (same.auth if same else "")
        if auth:
            close_tree(external, auth, whole=False)
            write_private(auth_file, f"{auth}\n")
        return ZooKeeperInfo(external, embedded=False, auth_path=str(auth_file) if auth else "")
    if before and running and not before.zookeeper.auth_path:  # brokers of an older release, which know no credentials
        server = EmbeddedZooKeeper(data_dir / "zookeeper", host=host)
    else:
        new_credentials(auth_file)
        server = EmbeddedZooKeeper(data_dir / "zookeeper", host=host, auth_file=auth_file)
    if server.is_running and server.host != host:  # no broker runs that knows it
        server.stop()
    if not server.is_running:
        server.start()
        undo.callback(server.stop)
    if not server.auth_file:
        return ZooKeeperInfo(server.address, embedded=True)
    _close(server, read_credentials(auth_file), running)
    return ZooKeeperInfo(server.address, embedded=True, auth_path=str(auth_file))


def _close(server: EmbeddedZooKeeper, credentials: str, running: bool) -> None:
    try:
        close_tree(server.address, credentials, whole=True)
    except StoreUnauthorized:
        if running:
            raise
        server.stop()  # it was left behind, and knows credentials that are lost
        server.start()
        close_tree(server.address, credentials, whole=True)


# --- brokers ---


def _create_missing(cluster: ClusterFile, size: int, places: Sequence[Place], undo: contextlib.ExitStack) -> bool:
    """Make every broker's actor that is not there; True when any was made."""
    former = {broker.id: broker.place for broker in cluster.brokers}
    created = False
    for broker_id in range(size):
        if ray_driver.actor(cluster.namespace, broker_id) is not None:
            continue
        place = place_for(broker_id, places, former.get(broker_id))
        file = BrokerFile(
            broker_id,
            cluster.namespace,
            cluster.zookeeper.connect,
            cluster.zookeeper.auth,
            place.host,
            broker_settings(cluster.settings, broker_id, place.name, place.host),
        )
        broker_dir = Path(cluster.data_dir) / "brokers" / str(broker_id)
        if cluster.ray.is_local:
            file.save(broker_dir)
        else:
            ray_driver.run_at(place, BrokerFile.save, file, broker_dir, timeout_s=UP_TIMEOUT_S)
        handle = broker_actor_class.options(
            name=file.actor, namespace=cluster.namespace, lifetime="detached", **place.options
        ).remote(str(broker_dir))
        undo.callback(_stop_actors, [handle])
        created = True
    return created


def _wait_until_serving(cluster: ClusterFile, size: int) -> ClusterFile:
    """The cluster with its brokers' addresses, once all serve and know each other.

    Raises RaylogError when one says for too long that something is in its way.
    """
    ids = list(range(size))
    deadline = time.monotonic() + UP_TIMEOUT_S
    troubled_since: dict[int, tuple[str, float]] = {}
    while True:
        answers = ray_driver.describe(cluster.namespace, ids)
        if all(answer.get("live_brokers") == ids for answer in answers.values()):
            return _with_addresses(cluster, answers)
        now = time.monotonic()
        for broker_id, answer in answers.items():
            trouble = answer["trouble"] if answer["state"] == "starting" else ""
            since = troubled_since.get(broker_id, ("", now))
            if not trouble or trouble != since[0]:
                since = troubled_since[broker_id] = (trouble, now)
            if (trouble and now - since[1] > TROUBLE_TIMEOUT_S) or now > deadline:
                raise RaylogError(f"broker {broker_id} does not serve: {answer['trouble'] or answer['state']}")
        time.sleep(POLL_S)


def _with_addresses(cluster: ClusterFile, answers: Mapping[int, Mapping[str, Any]]) -> ClusterFile:
    brokers = tuple(
        BrokerPlace(
            id=broker_id,
            actor=actor_name(broker_id),
            host=answer["host"],
            port=answer["port"],
            data_dir=answer["data_dir"],
            place=answer["rack"],
        )
        for broker_id, answer in sorted(answers.items())
    )
    return cluster.with_brokers(answers[0]["cluster_id"], brokers)


def _broker_status(place: BrokerPlace, answer: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": place.id,
        "host": place.host,
        "port": place.port,
        "listeners": answer.get("listeners", {}),
        "node": answer.get("node", ""),
        "place": place.place,
        "pid": answer.get("pid"),
        "partitions": answer.get("partitions", 0),
        "data_dir": place.data_dir,
        "controller": answer.get("controller_id") == place.id,
        "state": answer["state"],
        "trouble": answer["trouble"],
    }


def _stop_brokers(cluster: ClusterFile) -> None:
    """Stop and remove every actor in the cluster's namespace, and no other."""
    names = ray_driver.actor_names(cluster.namespace)
    _stop_actors([ray.get_actor(name, namespace=cluster.namespace) for name in names])
    deadline = time.monotonic() + CALL_TIMEOUT_S
    while ray_driver.actor_names(cluster.namespace) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _stop_actors(handles: Sequence[Any]) -> None:
    """Ask all that a cluster has for an orderly stop, at once, then remove them whether they answered or not.

    None is drained: there would be nobody to lead instead.
    """
    stops = [handle.stop.remote(drain=False) for handle in handles]
    if stops:
        ray.wait(stops, num_returns=len(stops), timeout=STOP_TIMEOUT_S)
    for handle in handles:
        ray.kill(handle, no_restart=True)
