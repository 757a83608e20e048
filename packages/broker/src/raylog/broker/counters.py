"""Plain counts of work done. Each connection writes its own; whoever exports them reads sums.

No lock and no library is on a request's way: an increment costs some 50 ns, a call of a metrics library several
microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

__all__ = ["Counters", "RequestTimes"]

K = TypeVar("K")

_BUCKETS = 64
"""Enough for every time that a 64-bit count of nanoseconds can tell."""


class RequestTimes:
    """How long the requests of one API took, as a histogram: bucket ``n`` counts those below 2**n microseconds that
    are in no lower one.
    """

    __slots__ = ("buckets", "total_ns")

    def __init__(self) -> None:
        self.buckets = [0] * _BUCKETS
        self.total_ns = 0

    def record(self, spent_ns: int) -> None:
        """Count one request."""
        self.buckets[(spent_ns // 1000).bit_length()] += 1
        self.total_ns += spent_ns

    @property
    def count(self) -> int:
        """How many requests were counted."""
        return sum(self.buckets)

    def add(self, other: RequestTimes) -> None:
        """Count ``other``'s requests, too."""
        self.buckets = [mine + its for mine, its in zip(self.buckets, other.buckets, strict=True)]
        self.total_ns += other.total_ns


@dataclass(slots=True)
class Counters:
    """What one connection did, or a sum over some. Only what serves the connection writes them."""

    messages_in: dict[str, int] = field(default_factory=dict)
    """Records appended, by topic."""
    bytes_in: dict[str, int] = field(default_factory=dict)
    """Bytes of record batches appended, by topic."""
    bytes_out: dict[str, int] = field(default_factory=dict)
    """Bytes of record batches handed to clients' sockets, by topic."""
    requests: dict[int, RequestTimes] = field(default_factory=dict)
    """From the whole request to its reply, waiting included, by API key."""
    defects: dict[int, int] = field(default_factory=dict)
    """Requests that met an exception nobody expected, by API key."""
    replication_bytes_out: dict[str, int] = field(default_factory=dict)
    """Bytes of record batches handed to followers' sockets, by topic."""

    def request(self, api_key: int, spent_ns: int) -> None:
        """Count one request that was answered."""
        times = self.requests.get(api_key)
        if times is None:
            times = self.requests[api_key] = RequestTimes()
        times.record(spent_ns)

    def add(self, other: Counters) -> None:
        """Add ``other``'s counts to these; ``other`` may be written meanwhile."""
        _add(self.messages_in, other.messages_in)
        _add(self.bytes_in, other.bytes_in)
        _add(self.bytes_out, other.bytes_out)
        _add(self.replication_bytes_out, other.replication_bytes_out)
        _add(self.defects, other.defects)
        for api_key, times in other.requests.copy().items():
            self.requests.setdefault(api_key, RequestTimes()).add(times)


def _add(sums: dict[K, int], counts: dict[K, int]) -> None:
    for key, count in counts.copy().items():
        sums[key] = sums.get(key, 0) + count
