"""Connections to all brokers behind one selector. One thread owns a pool; only :meth:`Pool.wakeup` is for others.

Bytes come in, replies go out of :meth:`Pool.poll`: nothing is called back. A connection is made when somebody
asks whether it is ready, and made again after a pause when it was lost.
"""

from __future__ import annotations

import random
import selectors
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

from kio.static.protocol import RequestPayload

from raylog.client.config.client import CLIENT_ID, REQUEST_TIMEOUT_MS
from raylog.client.config.connection import (
    BROKER_ADDRESS_FAMILY,
    CONNECTION_SETUP_TIMEOUT_MAX_MS,
    CONNECTION_SETUP_TIMEOUT_MS,
    CONNECTIONS_MAX_IDLE_MS,
    RECONNECT_BACKOFF_MAX_MS,
    RECONNECT_BACKOFF_MS,
)
from raylog.client.network.connection import Address, Connection, Part, Reply, State
from raylog.client.network.metadata import backoff_ms
from raylog.client.network.resolver import Candidate, LookUp, Resolver, system_look_up
from raylog.client.telemetry.client_log import ClientLog
from raylog.client.telemetry.metrics import NetworkCounts
from raylog.coordination.host.clocks import monotonic_ms
from raylog.protocol.errors import NetworkException, RaylogError
from raylog.protocol.settings import Settings
from raylog.protocol.wire.messages import encode_request

_FAMILIES = {"any": socket.AF_UNSPEC, "v4": socket.AF_INET, "v6": socket.AF_INET6}


class _Failures(NamedTuple):
    """Of an address that can't be reached."""

    in_a_row: int
    again_ms: int
    """When to try again."""
    error: RaylogError
    target: Any
    """Which of the host's addresses it was, the last of all."""


class Pool:
    """All connections of one client. ``look_up`` and ``chance`` (a number below 1) are the outside world."""

    def __init__(
        self,
        settings: Settings,
        *,
        look_up: LookUp = system_look_up,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.client_id = settings[CLIENT_ID]
        self._timeout_ms = settings[REQUEST_TIMEOUT_MS]
        self._backoff = (settings[RECONNECT_BACKOFF_MS], settings[RECONNECT_BACKOFF_MAX_MS])
        self._setup_timeout = (settings[CONNECTION_SETUP_TIMEOUT_MS], settings[CONNECTION_SETUP_TIMEOUT_MAX_MS])
        self._max_idle_ms = settings[CONNECTIONS_MAX_IDLE_MS]
        self._chance = chance
        self._resolver = Resolver(_FAMILIES[settings[BROKER_ADDRESS_FAMILY]], self.wakeup, look_up)
        self._connections: dict[Address, Connection] = {}
        self._failures: dict[Address, _Failures] = {}
        self._targets: dict[Address, Any] = {}
        """Which of the host's addresses was connected to last."""
        self._lost: list[Reply] = []
        self._written: list[Connection] = []
        """Connections with something to write that no poll has tried to write yet."""
        self.counts = NetworkCounts()
        self.log = ClientLog(self.client_id)
        self._woken = False
        self._selector = selectors.DefaultSelector()
        try:
            self._wake_receiver, self._wake_sender = socket.socketpair()
        except OSError:
            self._selector.close()
            raise
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, None)

    def ready(self, address: Address) -> bool:
        """True when requests can be sent there now; otherwise begins to connect unless it is too soon to."""
        connection = self._connections.get(address)
        if connection is None:
            now_ms = monotonic_ms()
            failures = self._failures.get(address)
            if failures is None or now_ms >= failures.again_ms:
                self._connect(address, now_ms)
            return False
        return connection.state is State.READY

    def least_loaded(self, addresses: Iterable[Address]) -> Address | None:
        """The one of these to which requests can be sent now that owes the fewest answers: not a broker that stopped
        answering, if there is another. None when there is none."""
        ready = [a for a in addresses if (c := self._connections.get(a)) is not None and c.state is State.READY]
        return min(ready, key=lambda address: len(self._connections[address].in_flight), default=None)

    def connecting_ms(self, address: Address) -> int | None:
        """For how long a connection there is being made, or the host looked up; None when neither is."""
        connection = self._connections.get(address)
        now_ms = monotonic_ms()
        if connection is None:
            return self._resolver.pending_ms(address, now_ms)
        return None if connection.state is State.READY else now_ms - connection.begun_ms

    def problem(self, address: Address) -> RaylogError | None:
        """Why the address can't be reached; None while nothing is known against it."""
        failures = self._failures.get(address)
        return failures.error if failures else None

    def was_connected(self, address: Address) -> bool:
        """Whether a connection there was ever made."""
        return address in self._targets

    def capacity(self, address: Address, max_in_flight: int) -> int:
        """How many more requests may wait for answers from there; 0 until everything sent before has left, and while
        the connection is being made."""
        connection = self._connections.get(address)
        if connection is None or connection.state is not State.READY or connection.wants_write():
            return 0
        return max(0, max_in_flight - len(connection.in_flight))

    def unwritten(self) -> bool:
        """True while something that was sent has not left for its socket."""
        return any(c.state is State.READY and c.wants_write() for c in self._connections.values())

    def send_message(
        self, address: Address, message: RequestPayload, context: Any, *, timeout_ms: int | None = None
    ) -> None:
        """Send a request of kio's type to a ready address."""
        self.send(
            address,
            int(message.__api_key__),
            int(message.__version__),
            lambda correlation_id: (encode_request(message, correlation_id, self.client_id),),
            context,
            timeout_ms=timeout_ms,
        )

    def send(
        self,
        address: Address,
        api_key: int,
        version: int,
        build: Callable[[int], Sequence[Part]],
        context: Any,
        *,
        timeout_ms: int | None = None,
        expects_reply: bool = True,
    ) -> None:
        """Send to a ready address the frame that ``build(correlation_id)`` makes; the next poll writes it.

        ``context`` must not be None: it comes back with the answer, or with the error when the connection is
        lost. Raises UnsupportedVersion when the broker doesn't speak the version.
        """
        connection = self._connections[address]
        connection.check_version(api_key, version)
        frame = build(connection.next_correlation_id())
        connection.send(
            api_key,
            version,
            frame,
            context,
            now_ms=monotonic_ms(),
            timeout_ms=timeout_ms or self._timeout_ms,
            expects_reply=expects_reply,
        )
        self.counts.sent(sum(map(len, frame)))
        self._written.append(connection)

    def poll(self, timeout_ms: float) -> list[Reply]:
        """Wait for something to happen, at most ``timeout_ms``; the answers that came and those that never will.

        Frames are valid until the next poll. An empty list says that the time is over, that somebody called
        :meth:`wakeup`, or that connections changed.
        """
        self._write()
        replies: list[Reply] = []
        for key, events in self._selector.select(self.wait_ms(timeout_ms) / 1_000):
            if key.data is None:
                # In this order: a wakeup in between is not sent, and need not be, since this poll returns.
                self._drain_wakeups()
                self._woken = False
            else:
                self._serve(key.data, events, replies)
        now_ms = monotonic_ms()
        for reply in replies:
            self.counts.answered(len(reply.frame), reply.request.latency_ms(now_ms), now_ms)
        for connection in list(self._connections.values()):
            overdue = connection.expired(now_ms)
            if overdue is not None:
                self._fail(connection, overdue)
            elif (idle_ends_ms := self._idle_ends_ms(connection)) is not None and now_ms >= idle_ends_ms:
                self._end_idle(connection)
        if self._lost:
            replies += self._lost
            self._lost = []
        return replies

    def fileno(self) -> int:
        """A descriptor that is readable whenever a poll has something to do before :meth:`wait_ms` is over: an event
        loop watches it in place of waiting in a poll."""
        return self._selector.fileno()

    def wait_ms(self, timeout_ms: float) -> float:
        """For how much of ``timeout_ms`` a poll may wait, unless something happens."""
        if self._lost or self._written:
            return 0
        now_ms = monotonic_ms()
        for connection in self._connections.values():
            deadline_ms = connection.next_deadline_ms()
            if deadline_ms is None:
                deadline_ms = self._idle_ends_ms(connection)
            if deadline_ms is not None:
                timeout_ms = min(timeout_ms, max(0, deadline_ms - now_ms))
        return timeout_ms

    def metrics(self) -> dict[str, float]:
        """What was counted; from any thread."""
        ready = [c for c in list(self._connections.values()) if c.state is State.READY]
        return self.counts.read((len(connection.in_flight) for connection in ready), monotonic_ms())

    def wakeup(self) -> None:
        """Make a poll that is waiting, or the next one, return at once. From any thread."""
        if not self._woken:
            self._woken = True
            try:
                self._wake_sender.send(b"\0")
            except OSError:
                pass  # full: a poll is bound to wake; closed: nobody polls any more

    def reset(self) -> None:
        """Close all connections and forget what was sent: no answer comes. An interrupt may have left one that is
        watched and not kept, or kept and not watched."""
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._selector.unregister(key.fileobj)
                cast(socket.socket, key.fileobj).close()
        for connection in list(self._connections.values()):
            self._drop(connection, NetworkException(f"{connection.address}: the connection was given up"))
        self._written.clear()
        self._lost.clear()
        self._woken = False  # at worst a wakeup comes twice

    def close(self) -> None:
        """Close all connections; requests that wait for answers get none."""
        for connection in list(self._connections.values()):
            self._drop(connection, NetworkException("the client was closed"))
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    def _write(self) -> None:
        """Write what was sent since the last poll: one system call per connection, however many requests."""
        for connection in dict.fromkeys(self._written):
            if connection.state is State.CLOSED:
                continue
            try:
                connection.flush()
            except NetworkException as error:
                self._fail(connection, error)
            else:
                self._watch(connection)
        self._written.clear()

    def _connect(self, address: Address, now_ms: int) -> None:
        failures = self._failures.get(address)
        in_a_row = 0 if failures is None else failures.in_a_row
        setup_timeout_ms = self._jittered(backoff_ms(in_a_row + 1, *self._setup_timeout))
        try:
            candidates = self._resolver.candidates(address, now_ms)
            if candidates is None:
                pending_ms = self._resolver.pending_ms(address, now_ms)
                if pending_ms is not None and pending_ms >= setup_timeout_ms:
                    raise NetworkException(f"{address}: the host name is being looked up for {pending_ms} ms")
                return
            connection = Connection(
                address,
                self._in_order(address, candidates),
                self.client_id,
                now_ms,
                setup_timeout_ms=setup_timeout_ms,
                timeout_ms=self._timeout_ms,
            )
        except NetworkException as error:
            self._note_failure(address, error, None)
            return
        self._connections[address] = connection
        self._selector.register(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)

    def _in_order(self, address: Address, candidates: Sequence[Candidate]) -> list[Candidate]:
        """First the address that worked last, last the one that failed last; as the name server says between them."""
        worked, failures = self._targets.get(address), self._failures.get(address)
        failed = None if failures is None else failures.target
        return sorted(candidates, key=lambda candidate: (candidate.target == failed, candidate.target != worked))

    def _idle_ends_ms(self, connection: Connection) -> int | None:
        """When it is to be closed since nobody uses it; None while somebody does, or where that is not asked for."""
        return connection.used_ms + self._max_idle_ms if self._max_idle_ms > 0 and connection.is_idle else None

    def _end_idle(self, connection: Connection) -> None:
        """No failure: it is made again as soon as somebody asks whether it is ready."""
        self._selector.unregister(connection.socket)
        self._drop(connection, NetworkException(f"{connection.address}: idle for {self._max_idle_ms} ms"))

    def _serve(self, connection: Connection, events: int, replies: list[Reply]) -> None:
        before = connection.state
        now_ms = connection.used_ms = monotonic_ms()
        try:
            if events & selectors.EVENT_WRITE and connection.wants_write():
                connection.on_writable(now_ms)
            if events & selectors.EVENT_READ and connection.state is not State.CONNECTING:
                connection.on_readable(replies)
        except RaylogError as error:
            self._fail(connection, error)
            return
        if before is not State.READY and connection.state is State.READY:
            self._connected(connection)
        self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.wants_write() else 0)
        if self._selector.get_key(connection.socket).events != events:
            self._selector.modify(connection.socket, events, connection)

    def _fail(self, connection: Connection, error: RaylogError) -> None:
        """Go on with the host's next address while the connection is being made; else it is lost."""
        self._selector.unregister(connection.socket)
        was_ready = connection.state is State.READY
        if connection.next_candidate(monotonic_ms()):
            self._selector.register(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
            return
        if was_ready:
            tell = self.log.warning if connection.in_flight else self.log.info
            tell(
                ("lost", connection.address),
                "the connection to broker %s is lost, with %d requests unanswered: %s",
                connection.address,
                len(connection.in_flight),
                error,
            )
        self._lost += self._drop(connection, error)
        self._note_failure(connection.address, error, None if was_ready else connection.target)

    def _note_failure(self, address: Address, error: RaylogError, target: Any) -> None:
        """``target``: the host's address that is not to be tried first again."""
        before = self._failures.get(address)
        in_a_row = 1 if before is None else before.in_a_row + 1
        if target is not None or in_a_row > 1:
            self.log.warning(
                ("unreachable", address),
                "broker %s cannot be connected to, which is tried again: %s",
                address,
                error,
            )
        pause_ms = self._jittered(backoff_ms(in_a_row, *self._backoff))
        self._failures[address] = _Failures(in_a_row, monotonic_ms() + pause_ms, error, target)

    def _connected(self, connection: Connection) -> None:
        address = connection.address
        again = " again" if address in self._targets else ""
        self.log.info(("connected", address, again), "connected to broker %s%s", address, again)
        self._failures.pop(address, None)
        self._targets[address] = connection.target
        self.counts.made += 1

    def _drop(self, connection: Connection, error: RaylogError) -> list[Reply]:
        """Close it, which nobody watches any more; what becomes of the requests that wait for answers."""
        del self._connections[connection.address]
        self.counts.closed += connection.state is State.READY
        return connection.close(error)

    def _jittered(self, time_ms: int) -> int:
        """Up to a fifth more or less, so that clients do not come back all at once (KIP-144, KIP-601)."""
        return round(time_ms * (0.8 + 0.4 * self._chance()))

    def _drain_wakeups(self) -> None:
        try:
            while self._wake_receiver.recv(4096):
                pass
        except BlockingIOError:
            pass
