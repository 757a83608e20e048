"""What `raylog up` is asked for, and what that means beside what runs already."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raylog.broker.cluster_file import ClusterFile
from raylog.broker.config import BROKER_ID, BROKER_SETTINGS, LISTENERS, ZOOKEEPER_CONNECT
from raylog.broker.listeners import parse_listeners
from raylog.coordination.java import NoJava, find_java
from raylog.protocol.errors import InvalidConfig, RaylogError

__all__ = ["Request", "check_change", "environment_for", "external_zookeeper", "settings_for"]


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked `raylog up` for; None: as it was, or the default."""

    data_dir: Path
    brokers: int | None = None
    zookeeper: str | None = None
    address: str | None = None
    """A running Ray cluster to join."""
    config: Mapping[str, str] | None = None


def settings_for(request: Request, before: ClusterFile | None) -> Mapping[str, str]:
    """The broker settings for this cluster: those of its last start, unless given anew. Raises InvalidConfig."""
    config = request.config
    if config is None:
        return before.settings if before else {}
    for setting in (BROKER_ID, ZOOKEEPER_CONNECT):
        if setting.name in config:
            raise InvalidConfig(f"{setting.name} is set by `raylog up` itself, not by --config")
    parsed = BROKER_SETTINGS.settings(config)
    if LISTENERS.name in config:
        texts = parsed[LISTENERS]
        parse_listeners(texts)
    return dict(config)


def check_change(before: ClusterFile, request: Request, size: int) -> None:
    """Refuse, in one sentence, what a running cluster cannot become."""
    where = f"the cluster in {before.data_dir}"
    if size < len(before.brokers):
        raise RaylogError(f"{where} runs {len(before.brokers)} brokers and cannot shrink to {size}")
    asked = (request.config, dict(before.settings)), (request.zookeeper, before.zookeeper.connect)
    if any(wanted is not None and wanted != has for wanted, has in asked):
        raise RaylogError(f"{where} runs with other settings: `raylog down --data-dir {before.data_dir}` first")


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
