"""Hints that another broker's process is gone, faster than its session's end (D9): see ``coordination.liveness``.

Brokers connect to the first listener of each other, and say nothing unasked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from raylog.broker.events import EventLog
from raylog.coordination.host.loops import Loops
from raylog.coordination.membership.host_names import Names
from raylog.coordination.membership.liveness import LivenessConnections, Peer
from raylog.coordination.metadata.model import BrokerInfo
from raylog.protocol.ids import BrokerEpoch, BrokerId
from raylog.protocol.texts import host_port

__all__ = ["BrokerLiveness", "Liveness", "SessionsOnly"]

logger = EventLog(__name__)


class Liveness(Protocol):
    """Watches the processes of other brokers."""

    def watch(self, brokers: Iterable[BrokerInfo]) -> None:
        """Watch exactly these brokers, in these incarnations, from now on. Does not block."""

    def stop(self) -> None:
        """Watch nobody, and end the thread."""


class SessionsOnly:
    """The trivial implementation: no hints, a broker is gone when its session is."""

    def watch(self, brokers: Iterable[BrokerInfo]) -> None:
        return

    def stop(self) -> None:
        return


class _Incarnation(NamedTuple):
    """Who is watched."""

    id: BrokerId
    epoch: BrokerEpoch


class BrokerLiveness:
    """See the module."""

    def __init__(
        self,
        broker_id: BrokerId,
        on_gone: Callable[[BrokerId, BrokerEpoch], None],
        loops: Loops,
        names: Names | None = None,
    ) -> None:
        """``broker_id`` is our own, which is not watched. ``on_gone`` is called on a thread of its own, again and
        again while an incarnation seems dead, and must only take note. ``names``: finds hosts, and is stopped with us.
        """
        self._broker_id = broker_id
        self._on_gone = on_gone
        self._connections = LivenessConnections(self._gone, loops, names)

    def watch(self, brokers: Iterable[BrokerInfo]) -> None:
        """See Liveness."""
        endpoints = ((broker, broker.endpoint()) for broker in brokers if broker.id != self._broker_id)
        self._connections.watch(
            Peer(_Incarnation(broker.id, broker.epoch), at.host, at.port) for broker, at in endpoints if at is not None
        )

    def stop(self) -> None:
        """See Liveness. May be called twice."""
        self._connections.stop()

    def _gone(self, peer: Peer, is_first: bool) -> None:
        who = peer.key
        assert isinstance(who, _Incarnation)
        if is_first:
            logger.warning(
                "broker seems dead: it dropped its connection, and nobody listens there",
                other=who.id, broker_epoch=who.epoch, at=host_port(peer.host, peer.port),
            )  # fmt: skip
        self._on_gone(who.id, who.epoch)
