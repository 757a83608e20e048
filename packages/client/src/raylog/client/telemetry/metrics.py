"""◆ What a client counts of itself, under the names of Java's client.

The thread that does the work counts, per batch or per request; any thread may read. So nothing is locked: a reader may
see a batch counted in one number and not yet in another. Averages and maxima are of the last 30 to 60 seconds, as with
Java's defaults (two samples of ``metrics.sample.window.ms``), and NaN where nothing was measured in that time.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import nan
from typing import NamedTuple, Protocol

__all__ = [
    "CONSUMER_METRICS",
    "PRODUCER_METRICS",
    "FetchCounts",
    "Metric",
    "NetworkCounts",
    "SendCounts",
    "Series",
    "Window",
]

SAMPLE_MS = 30_000


class Metric(NamedTuple):
    """A row of what ``metrics()`` answers."""

    name: str
    group: str
    """Java's group of metrics, behind ``producer-`` or ``consumer-``."""
    doc: str

    @property
    def is_total(self) -> bool:
        """It only grows, from zero at the client's start."""
        return self.name.endswith("-total")


class Series(Protocol):
    """A metric as its exporter knows it."""

    def inc(self, value: float, tags: dict[str, str], /) -> None:
        """Of a total: so much came on top."""

    def set(self, value: float, tags: dict[str, str], /) -> None:
        """Of any other."""


_COMMON = (
    Metric("connection-count", "metrics", "Connections that are open."),
    Metric("connection-creation-total", "metrics", "Connections that were made."),
    Metric("connection-close-total", "metrics", "Connections that were closed or lost."),
    Metric("request-total", "metrics", "Requests sent."),
    Metric("response-total", "metrics", "Answers received."),
    Metric("outgoing-byte-total", "metrics", "Bytes of requests."),
    Metric("incoming-byte-total", "metrics", "Bytes of answers."),
    Metric("requests-in-flight", "metrics", "Requests that wait for their answers."),
    Metric("request-latency-avg", "metrics", "Milliseconds from a request to its answer."),
    Metric("request-latency-max", "metrics", "The longest of these."),
)
PRODUCER_METRICS = (
    *_COMMON,
    Metric("record-send-total", "metrics", "Records sent, each time that they were."),
    Metric("record-error-total", "metrics", "Records whose delivery failed."),
    Metric("record-retry-total", "metrics", "Records that had to be sent again, each time."),
    Metric("batch-split-total", "metrics", "Batches sent as two halves, for they were too large (KIP-126)."),
    Metric("batch-size-avg", "metrics", "Bytes of a batch as it was sent, compressed."),
    Metric("batch-size-max", "metrics", "The largest of these."),
    Metric("records-per-request-avg", "metrics", "Records in a request."),
    Metric("buffer-total-bytes", "metrics", "buffer.memory."),
    Metric("buffer-available-bytes", "metrics", "What of it is free."),
)
CONSUMER_METRICS = (
    *_COMMON,
    Metric("records-consumed-total", "fetch-manager-metrics", "Records decoded to be handed out."),
    Metric("bytes-consumed-total", "fetch-manager-metrics", "Bytes of their batches, compressed."),
    Metric("fetch-total", "fetch-manager-metrics", "Fetches answered."),
    Metric("fetch-latency-avg", "fetch-manager-metrics", "Milliseconds that a fetch took, its wait for data included."),
    Metric("fetch-latency-max", "fetch-manager-metrics", "The longest of these."),
    Metric("fetch-size-avg", "fetch-manager-metrics", "Bytes of a fetch's answer."),
    Metric("fetch-size-max", "fetch-manager-metrics", "The largest of these."),
    Metric("records-lag-max", "fetch-manager-metrics", "Offsets that the partition furthest behind lacks."),
    Metric("assigned-partitions", "coordinator-metrics", "Partitions that are read."),
    Metric("commit-total", "coordinator-metrics", "Commits to the group, without those of what was given up."),
)


class _Sample(NamedTuple):
    since_ms: int
    number: int
    total: float
    most: float


class Window:
    """Values of the last one to two SAMPLE_MS. One thread notes them."""

    __slots__ = ("_before", "_now")

    def __init__(self) -> None:
        self._before = self._now = _Sample(-SAMPLE_MS, 0, 0, 0)

    def note(self, value: float, now_ms: int) -> None:
        since_ms, number, total, most = self._now
        if now_ms >= since_ms + SAMPLE_MS:
            self._before, self._now = self._now, _Sample(now_ms, 1, value, value)
        else:
            self._now = _Sample(since_ms, number + 1, total + value, value if value > most else most)

    def average(self, now_ms: int) -> float:
        samples = self._recent(now_ms)
        return sum(sample.total for sample in samples) / sum(sample.number for sample in samples) if samples else nan

    def maximum(self, now_ms: int) -> float:
        return max((sample.most for sample in self._recent(now_ms)), default=nan)

    def _recent(self, now_ms: int) -> list[_Sample]:
        return [s for s in (self._before, self._now) if s.number and s.since_ms > now_ms - 2 * SAMPLE_MS]


class NetworkCounts:
    """Of a client's connections."""

    __slots__ = ("closed", "incoming_bytes", "latency", "made", "outgoing_bytes", "requests", "responses")

    def __init__(self) -> None:
        self.made = self.closed = self.requests = self.responses = self.outgoing_bytes = self.incoming_bytes = 0
        self.latency = Window()

    def sent(self, size: int) -> None:
        """A request of so many bytes."""
        self.requests += 1
        self.outgoing_bytes += size

    def answered(self, size: int, latency_ms: int, now_ms: int) -> None:
        """So many bytes came after so long."""
        self.responses += 1
        self.incoming_bytes += size
        self.latency.note(latency_ms, now_ms)

    def read(self, in_flight: Iterable[int], now_ms: int) -> dict[str, float]:
        """``in_flight``: the requests of each connection that is open."""
        waiting = list(in_flight)
        return {
            "connection-count": len(waiting),
            "connection-creation-total": self.made,
            "connection-close-total": self.closed,
            "request-total": self.requests,
            "response-total": self.responses,
            "outgoing-byte-total": self.outgoing_bytes,
            "incoming-byte-total": self.incoming_bytes,
            "requests-in-flight": sum(waiting),
            "request-latency-avg": self.latency.average(now_ms),
            "request-latency-max": self.latency.maximum(now_ms),
        }


class SendCounts:
    """Of a producer's batches."""

    __slots__ = ("_batch_size", "_per_request", "failed", "retried", "sent", "split")

    def __init__(self) -> None:
        self.sent = self.failed = self.retried = self.split = 0
        self._batch_size, self._per_request = Window(), Window()

    def requested(self, records: int, sizes: Iterable[int], now_ms: int) -> None:
        """A request with so many records, in batches of these sizes."""
        self.sent += records
        self._per_request.note(records, now_ms)
        for size in sizes:
            self._batch_size.note(size, now_ms)

    def read(self, buffer_memory: int, free_memory: int, now_ms: int) -> dict[str, float]:
        return {
            "record-send-total": self.sent,
            "record-error-total": self.failed,
            "record-retry-total": self.retried,
            "batch-split-total": self.split,
            "batch-size-avg": self._batch_size.average(now_ms),
            "batch-size-max": self._batch_size.maximum(now_ms),
            "records-per-request-avg": self._per_request.average(now_ms),
            "buffer-total-bytes": buffer_memory,
            "buffer-available-bytes": free_memory,
        }


class FetchCounts:
    """Of what a consumer reads."""

    __slots__ = ("_latency", "_size", "bytes", "commits", "fetches", "records")

    def __init__(self) -> None:
        self.records = self.bytes = self.fetches = self.commits = 0
        self._latency, self._size = Window(), Window()

    def consumed(self, records: int, size: int) -> None:
        """So many records, of a batch or several of that size, are about to be handed out."""
        self.records += records
        self.bytes += size

    def fetched(self, size: int, latency_ms: int, now_ms: int) -> None:
        """A fetch's answer came."""
        self.fetches += 1
        self._latency.note(latency_ms, now_ms)
        self._size.note(size, now_ms)

    def read(self, lags: Iterable[int | None], now_ms: int) -> dict[str, float]:
        """``lags``: of each partition that is read, None where it is not known."""
        found = list(lags)
        return {
            "records-consumed-total": self.records,
            "bytes-consumed-total": self.bytes,
            "fetch-total": self.fetches,
            "fetch-latency-avg": self._latency.average(now_ms),
            "fetch-latency-max": self._latency.maximum(now_ms),
            "fetch-size-avg": self._size.average(now_ms),
            "fetch-size-max": self._size.maximum(now_ms),
            "records-lag-max": max((lag for lag in found if lag is not None), default=nan),
            "assigned-partitions": len(found),
            "commit-total": self.commits,
        }
