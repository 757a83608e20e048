"""What `raylog up` is asked for, and what that means beside what runs already."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from raylog.broker.config import (
    ADVERTISED_LISTENERS,
    BROKER_ID,
    BROKER_RACK,
    BROKER_SETTINGS,
    LISTENERS,
    ZOOKEEPER_CONNECT,
)
from raylog.broker.launch.cluster_file import ClusterFile
from raylog.broker.net.listeners import check_listeners, format_listener, parse_listeners
from raylog.broker.net.server import Listener
from raylog.coordination.host.java import NoJava, find_java
from raylog.coordination.zookeeper.embedded import LOOPBACK
from raylog.protocol.errors import InvalidConfig, RaylogError

__all__ = [
    "Request",
    "broker_settings",
    "check_change",
    "environment_for",
    "external_zookeeper",
    "settings_for",
]


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked `raylog up` for; None: as it was, or the default."""

    data_dir: Path
    brokers: int | None = None
    zookeeper: str | None = None
    address: str | None = None
    """A running Ray cluster to join."""
    config: Mapping[str, str] | None = None
    zookeeper_auth: str | None = None
    """Credentials for ``zookeeper``, as text."""
    dashboard: bool | None = None
    """Whether the Ray cluster that is started has Ray's dashboard; by default it has."""


def settings_for(request: Request, before: ClusterFile | None) -> Mapping[str, str]:
    """The broker settings for this cluster: those of its last start, unless given anew. Raises InvalidConfig."""
    config = request.config
    if config is None:
        return before.settings if before else {}
    for setting in (BROKER_ID, ZOOKEEPER_CONNECT):
        if setting.name in config:
            raise InvalidConfig(f"{setting.name} is set by `raylog up` itself, not by --config")
    check_listeners(BROKER_SETTINGS.settings(config))
    return dict(config)


def broker_settings(common: Mapping[str, str], broker_id: int, place: str, host: str) -> dict[str, str]:
    """What one broker's settings are: those for all, its rack (``place``), and listeners of its own.

    Brokers that share a machine cannot share a port: a fixed one, also an advertised one, is that of broker 0, and
    broker N has the N-th after it.
    """
    settings = dict(common)
    settings.setdefault(BROKER_RACK.name, place)
    settings.setdefault(LISTENERS.name, format_listener(Listener("PLAINTEXT", host, 0)))
    parsed = BROKER_SETTINGS.settings(settings)
    for setting in (LISTENERS, ADVERTISED_LISTENERS):
        texts = parsed[setting]
        if texts:
            listeners = parse_listeners(texts, setting.name)
            own = [replace(at, port=at.port + broker_id if at.port else 0) for at in listeners]
            settings[setting.name] = ",".join(map(format_listener, own))
    return settings


def check_change(before: ClusterFile, request: Request, size: int, zookeeper_host: str) -> None:
    """Refuse, in one sentence, what a running cluster cannot become. ``zookeeper_host``: where it would listen now."""
    where = f"the cluster in {before.data_dir}"
    if size < len(before.brokers):
        raise RaylogError(f"{where} runs {len(before.brokers)} brokers and cannot shrink to {size}")
    asked = (request.config, dict(before.settings)), (request.zookeeper, before.zookeeper.connect)
    has_other_auth = request.zookeeper_auth is not None and request.zookeeper_auth != before.zookeeper.auth
    if has_other_auth or any(wanted is not None and wanted != has for wanted, has in asked):
        raise RaylogError(f"{where} runs with other settings: `raylog down --data-dir {before.data_dir}` first")
    zookeeper = before.zookeeper
    if size > len(before.brokers) and zookeeper.embedded and LOOPBACK == zookeeper.host != zookeeper_host:
        raise RaylogError(
            f"{where} has its ZooKeeper on loopback, where brokers on other nodes cannot reach it: `raylog down "
            f"--data-dir {before.data_dir}` first, and the next `raylog up` lets it listen at {zookeeper_host}"
        )


def external_zookeeper(request: Request, before: ClusterFile | None) -> str | None:
    if request.zookeeper:
        return request.zookeeper
    return before.zookeeper.connect if before and not before.zookeeper.embedded else None


def environment_for(*, needs_java: bool) -> dict[str, str]:
    """Ours, with Java first on PATH: ZooKeeper runs on it, and Ray starts Spark's workers with it."""
    try:
        return find_java().environment(os.environ)
    except NoJava:
        if needs_java:
            raise
        return dict(os.environ)
