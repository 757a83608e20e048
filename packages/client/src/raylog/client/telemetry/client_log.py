"""What a client's log says of its brokers: with the client's name, each kind of line once, and again a minute later."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from raylog.client.telemetry.seldom import Seldom
from raylog.coordination.host.clocks import monotonic_ms
from raylog.protocol.logs import Logger

log = Logger(__name__)


class ClientLog:
    """One client's. The thread that owns the client's network uses it."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._seldom = Seldom()

    def info(self, kind: Hashable, text: str, *values: object) -> None:
        """Log ``text``, unless a line of this ``kind`` was logged within the last minute."""
        self._tell(log.info, kind, text, values)

    def warning(self, kind: Hashable, text: str, *values: object) -> None:
        """As :meth:`info`."""
        self._tell(log.warning, kind, text, values)

    def error(self, kind: Hashable, text: str, *values: object) -> None:
        """As :meth:`info`."""
        self._tell(log.error, kind, text, values)

    def _tell(self, write: Callable[..., None], kind: Hashable, text: str, values: tuple[object, ...]) -> None:
        kept_back = self._seldom.due(kind, monotonic_ms())
        if kept_back is not None:
            more = f"; {kept_back} more such lines were kept back" if kept_back else ""
            write("client %s: " + text + "%s", self._client_id, *values, more)
