"""Where a client's metrics go when it runs inside of Ray: its agent shows them to Prometheus as ``ray_NAME``."""

from __future__ import annotations

from threading import Lock
from typing import Any

import ray
from ray.util.metrics import Counter, Gauge

from raylog.client.telemetry.metrics import Metric, Series

_lock = Lock()
_known: dict[str, Series] = {}


def is_inside() -> bool:
    """Whether this process is connected to Ray: a driver, a task or an actor."""
    return bool(ray.is_initialized())


def series(name: str, metric: Metric) -> Series:
    """Ray's Counter or Gauge of the name, the same for all clients of the process."""
    with _lock:
        if name not in _known:
            make: Any = Counter if metric.is_total else Gauge
            _known[name] = make(name, metric.doc, ("client_id", "client"))
        return _known[name]
