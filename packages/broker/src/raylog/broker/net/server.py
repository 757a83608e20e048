"""The socket server: one accept thread per listener, one blocking thread per connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raylog.broker.handlers.context import Counters, Ports
from raylog.protocol.settings import Settings


@dataclass(frozen=True, slots=True)
class Listener:
    """A named address to accept connections at; port 0 lets the system choose."""

    name: str
    host: str
    port: int


class SocketServer:
    """Serves the Kafka protocol at one or more listeners."""

    def __init__(self, listeners: Sequence[Listener], ports: Ports, settings: Settings) -> None:
        """``settings``: the broker's; limits are read from them at each use."""
        raise NotImplementedError

    def bind(self) -> Sequence[Listener]:
        """Bind all listeners and return them with their actual ports; connections queue but get no answer yet.

        Raises OSError, naming the address, when a port is taken.
        """
        raise NotImplementedError

    def start(self) -> None:
        """Begin to accept; binds first when :meth:`bind` was not called."""
        raise NotImplementedError

    def stop(self, timeout: float = 5.0) -> None:
        """Stop accepting, let replies that are being sent finish for up to ``timeout`` seconds, close everything."""
        raise NotImplementedError

    @property
    def endpoints(self) -> Sequence[Listener]:
        """The bound listeners."""
        raise NotImplementedError

    def counters(self) -> Counters:
        """Sums over all connections since the start, closed ones included."""
        raise NotImplementedError
