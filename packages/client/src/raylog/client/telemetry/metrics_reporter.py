"""What tells a client's metrics by itself: to its user's callback, and to Ray where the client runs inside of it.

Each has a thread of its own, for neither may hold up the client. It ends with the client, also where nobody closes it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from math import isnan
from threading import Lock
from weakref import WeakMethod

from raylog.client.config.client import CLIENT_ID, STATISTICS_INTERVAL_MS
from raylog.client.telemetry.metrics import Metric, Series
from raylog.client.telemetry.seldom import Seldom
from raylog.coordination.host.clocks import monotonic_ms
from raylog.coordination.host.loops import Loop, Loops
from raylog.protocol.errors import InvalidConfig
from raylog.protocol.logs import Logger
from raylog.protocol.settings import Settings

__all__ = ["MetricsExport", "MetricsReporter", "Statistics"]

log = Logger(__name__)

Statistics = Callable[[dict[str, float]], object]
"""A user's callback; see the clients' ``stats_cb``."""

_RAY_INTERVAL_S = 5.0
"""As brokers tell theirs."""
_CLOSE_S = 1.0


class MetricsReporter:
    """One client's."""

    def __init__(
        self,
        client: str,
        settings: Settings,
        rows: Sequence[Metric],
        metrics: Callable[[], dict[str, float]],
        stats_cb: Statistics | None,
    ) -> None:
        """``client``: producer or consumer. ``metrics``: a bound method, which answers a value for each of ``rows``.

        Raises InvalidConfig for a callback that would never be called, or that is none.
        """
        self._interval_s = settings[STATISTICS_INTERVAL_MS] / 1_000
        if stats_cb is not None and not callable(stats_cb):
            raise InvalidConfig(f"stats_cb: {stats_cb!r} cannot be called; give a function of a dict")
        if stats_cb is not None and not self._interval_s:
            raise InvalidConfig("stats_cb is never called while statistics.interval.ms is 0: set it")
        self._client, self._client_id = client, settings[CLIENT_ID]
        self._rows = rows
        self._metrics = WeakMethod(metrics)
        self._stats_cb = stats_cb
        self._seldom = Seldom()
        self._loops = Loops()
        self._running: list[Loop] = []

    def start(self) -> None:
        """Begin, when the client is made. RuntimeError when the system has no more threads."""
        try:
            if self._stats_cb is not None:
                self._every(self._interval_s, "raylog-statistics", self._call)
            if "ray" in sys.modules:
                from raylog.client.telemetry import ray_metrics  # noqa: PLC0415 (it loads Ray)

                if ray_metrics.is_inside():
                    export = MetricsExport(self._client, self._client_id, self._rows, ray_metrics.series)
                    self._every(_RAY_INTERVAL_S, "raylog-ray-metrics", export.publish, export.end)
        except BaseException:
            self.stop(wait=False)
            raise

    @property
    def is_over(self) -> bool:
        """Nothing is told any more."""
        return not any(loop.is_alive for loop in self._running)

    def stop(self, *, wait: bool = True) -> None:
        """Tell no more than the last numbers, to Ray. ``wait``: return when that is done, within a second."""
        for loop in self._running:
            loop.stop()
        for loop in self._running if wait else ():
            loop.join(_CLOSE_S)

    def _every(
        self,
        interval_s: float,
        name: str,
        tell: Callable[[dict[str, float]], None],
        end: Callable[[dict[str, float]], None] = lambda _: None,
    ) -> None:
        def step() -> bool:
            stopped = loop.stopping.wait(interval_s)
            metrics = self._metrics()
            if metrics is None or stopped:
                end({} if metrics is None else metrics())
                return False
            tell(metrics())
            return True

        loop = self._loops.loop(name, step, vital=False, last_pause_s=interval_s)
        loop.start()
        self._running.append(loop)

    def _call(self, values: dict[str, float]) -> None:
        assert self._stats_cb is not None
        try:
            self._stats_cb(values)
        except BaseException:  # whatever it is, it is told, and ends nothing
            if self._seldom.due("stats_cb", monotonic_ms()) is not None:
                log.exception("%s %s: stats_cb raised; it is called again all the same", self._client, self._client_id)


_lock = Lock()
_numbers: set[tuple[str, str, int]] = set()
"""Of the clients of this process that are exported: which of those with one client.id."""


class MetricsExport:
    """Makes series of a client's metrics: ``kafka_producer_producer_metrics_record_send_total`` and the like, which is
    what Prometheus' exporter makes of Java's names, with the labels ``client_id`` and ``client``, a number that tells
    apart the clients of one client.id in one process, and that the next one takes up after a close."""

    def __init__(
        self, client: str, client_id: str, rows: Sequence[Metric], series: Callable[[str, Metric], Series]
    ) -> None:
        self._client = client
        self._rows = rows
        self._series = series
        self._told: dict[str, float] = {}
        with _lock:
            self._number = next(key for key in _keys(client, client_id) if key not in _numbers)
            _numbers.add(self._number)
        self._tags = {"client_id": client_id, "client": str(self._number[2])}

    def publish(self, values: Mapping[str, float]) -> None:
        """The values as they are now. One thread calls it."""
        for row in self._rows:
            value = values.get(row.name, 0.0)
            if isnan(value):
                continue
            series = self._series(f"kafka_{self._client}_{self._client}_{row.group}_{row.name}".replace("-", "_"), row)
            if not row.is_total:
                series.set(value, self._tags)
            elif (fresh := value - self._told.get(row.name, 0.0)) > 0:
                self._told[row.name] = value
                series.inc(fresh, self._tags)

    def end(self, values: Mapping[str, float]) -> None:
        """The totals for the last time, and nothing else any more: zero."""
        self.publish({row.name: values.get(row.name, 0.0) if row.is_total else 0.0 for row in self._rows})
        with _lock:
            _numbers.discard(self._number)


def _keys(client: str, client_id: str) -> Iterator[tuple[str, str, int]]:
    return ((client, client_id, number) for number in count())
