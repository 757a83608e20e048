"""Starts kazoo's connection again where its thread has ended by an exception that kazoo does not foresee.

Without that the store would be LOST for ever. With the thread the session has ended: a new one begins, as after an
expiry. This module does not import kazoo.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

from raylog.coordination.host.loops import Loop, Loops
from raylog.protocol.logs import Logger

__all__ = ["ConnectionRestart"]

log = Logger(__name__)

_LOOK_S = 0.05


class ConnectionRestart:
    """For one client (a KazooClient) that was connected once. Any thread may call it, kazoo's too."""

    def __init__(self, client: Any, loops: Loops) -> None:
        self._client = client
        self._loops = loops
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        """Held while the connection's thread is started or stopped."""
        self._restart: Loop | None = None
        self._closed = False

    def if_dead(self) -> None:
        """Where the thread has ended though nobody stopped it, see that it is started again. Does not block."""
        with self._lock:
            is_under_way = self._restart is not None and self._restart.is_alive
            if self._closed or is_under_way or not self._is_dead():
                return
            restart = self._restart = self._loops.loop("zookeeper-restart", self._start_again, vital=False)
            try:
                restart.start()
            except RuntimeError as error:  # no more threads: whoever looks next tries again
                log.error("the connection to ZooKeeper has ended and is not started again yet: %s", error)

    def close(self) -> None:
        """Stop the client, for good."""
        self._close(self._client.stop)

    def abandon(self) -> None:
        """As :meth:`close`, without ending the session."""
        self._close(self._stop_silently)

    def _close(self, stop: Callable[[], object]) -> None:
        with self._starting:
            self._closed = True
            with self._lock:
                if self._restart is not None:
                    self._restart.stop()
            stop()
            self._client.close()

    def _stop_silently(self) -> None:
        """kazoo's stop() would send the end of the session first. Its thread ends with its connection once it is told
        to stop; one that is just being made is no connection yet, so it is looked for again."""
        self._client._stopped.set()
        connection = self._client._connection
        while not connection.connection_stopped.is_set():
            try:
                connection._socket.shutdown(socket.SHUT_RDWR)
            except (AttributeError, OSError):
                pass  # there is none at the moment
            connection.connection_stopped.wait(_LOOK_S)
        self._client._safe_close()

    def _is_dead(self) -> bool:
        return bool(self._client._connection.connection_stopped.is_set())

    def _start_again(self) -> bool:
        with self._starting:
            if not self._closed and self._is_dead():
                log.error("the connection to ZooKeeper has ended by a defect of kazoo, starting it again")
                self._client.start_async()
        return False
