"""What a member's thread has from outside, besides its store: the clocks, and the parts with threads of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from raylog.coordination.groups.registry import GroupRegistry
from raylog.coordination.host.clocks import monotonic_ms, wall_ms
from raylog.coordination.host.loops import Loops
from raylog.coordination.membership.lease import Lease
from raylog.coordination.membership.liveness import LivenessConnections, Peer
from raylog.protocol.ids import MonotonicMs, TimestampMs

__all__ = ["Liveness", "MemberPorts"]


class Liveness(Protocol):
    """Watches other members' processes (LivenessConnections)."""

    def watch(self, peers: Iterable[Peer], /) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True)
class MemberPorts:
    """See the module. A real member has the defaults."""

    now_ms: Callable[[], MonotonicMs] = monotonic_ms
    wall_ms: Callable[[], TimestampMs] = wall_ms
    lease: Callable[[], Lease] = Lease
    registry: Callable[..., GroupRegistry] = GroupRegistry
    liveness: Callable[[Callable[[Peer, bool], None], Loops], Liveness] = LivenessConnections
