"""One client's connection, served by the loop (D4): requests in, replies out, as far as the socket lets it.

It is not read while its client does not take the replies, while a request waits for its turn, while there is no memory
for a larger one, and while another thread works for it: requests that may wait, for the metadata store or a disk, and
reading what is to be sent and is not in the page cache.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial

from raylog.broker.config import CONNECTIONS_MAX_IDLE_MS, SOCKET_REQUEST_MAX_BYTES
from raylog.broker.events import EventLog
from raylog.broker.handlers import answer, may_wait
from raylog.broker.handlers.context import CloseConnection, Connection, DelayedReply, MustWait, Ports
from raylog.broker.net.away import Away
from raylog.broker.net.exchange import Exchange, Request
from raylog.broker.net.loop import EventLoop
from raylog.broker.net.output import Output, Sent, warm
from raylog.broker.net.request_memory import LOOK_S, RequestMemory
from raylog.broker.net.slow_apis import SlowApis
from raylog.broker.net.sockets import Address, address_text, end_orderly, make_ready
from raylog.broker.net.source import Source
from raylog.broker.net.threads import Threads
from raylog.broker.storage.disk.slices import FileSlice
from raylog.protocol.errors import InvalidRequest, UnsupportedVersion
from raylog.protocol.settings import Settings

__all__ = ["ClientConnection"]

log = EventLog(__name__)

SEND_TIMEOUT_S = 30.0
"""How long a client may take nothing of what waits for it: Kafka clients' own request timeout."""

QUIET_S = 1.0
"""A connection that says nothing for so long gives its large buffer back."""

MAX_REQUESTS = 64
"""So many are answered in one turn: then others have theirs."""

MAX_HELD_REPLIES = 8
"""So many replies leave together: to wake the client for each costs more than to take the requests in."""

READ = select.EPOLLIN | select.EPOLLRDHUP
WRITE = select.EPOLLOUT | select.EPOLLET  # told once when there is room
GONE = select.EPOLLERR | select.EPOLLHUP


class ClientConnection(Source):
    """Used by the loop's thread; :meth:`_work_away` runs in others while it is away."""

    def __init__(
        self,
        sock: socket.socket,
        address: Address,
        listener: str,
        *,
        loop: EventLoop,
        threads: Threads,
        slow_apis: SlowApis,
        ports: Ports,
        settings: Settings,
        memory: RequestMemory,
        ended: Callable[[ClientConnection], None],
    ) -> None:
        """``ended``: hears, once, that it is over."""
        make_ready(sock)
        self._sock = sock
        self.ip, self.name = address[0], address_text(address)
        self._names = {"listener": listener, "client": self.name}
        """What log lines say of this connection."""
        self._loop = loop
        self._away = Away(loop, threads)
        self._slow_apis = slow_apis
        self._waits = False
        """The next request has to, as its handler said."""
        self._answering: int | None = None
        """The API of the request that the loop answers."""
        self._ports = ports
        self._max_idle_s = settings[CONNECTIONS_MAX_IDLE_MS] / 1000
        self._ended = ended
        self.connection = Connection(listener=listener, host=self.ip)
        self._output = Output()
        self._replies = 0
        """Put into the output since it was sent last."""
        self._goes_on = False
        """It will have another turn to send more."""
        self._unsent_s: float | None = None
        """Since when output waits, and the client takes none of it."""
        max_bytes = settings[SOCKET_REQUEST_MAX_BYTES]
        self._exchange = Exchange(max_bytes, send=self._put, answered=self._answered, wake=self.wake)
        self._memory = memory.share(self.wake)
        self._is_cut = False
        """It ends once what works for it has come back."""
        self._is_ending = False
        """Nothing more is read; what is in the output leaves, if it can."""
        self.is_over = False
        self.send_timeout_s = SEND_TIMEOUT_S
        self._heard_s = loop.now_s
        """When its client was last heard of, or answered."""

    def __str__(self) -> str:
        return self.name

    def begin(self) -> None:
        """Have the loop look after it."""
        self._loop.add(self, READ)
        self._loop.look_at(self, self._heard_s + self._max_idle_s)

    def fileno(self) -> int:
        return self._sock.fileno()

    def wake(self) -> None:
        """Have it look around; from any thread."""
        self._loop.wake(self)

    def end_soon(self) -> None:
        """The server stops: what is ready is sent, and nothing waited for."""
        self._is_ending = True
        self.wake()

    # --- what the loop calls

    def ready(self, events: int) -> None:
        if not self.is_over:
            self._guarded(partial(self._ready, events))

    def woken(self) -> None:
        self._guarded(self._look)

    def stuck(self) -> None:
        api_key = self._answering
        if api_key is not None:
            self._slow_apis.note(api_key, time.monotonic())

    def end_now(self) -> None:
        """The server's patience is over. What another thread works with is given back when that has come back."""
        if not self.is_away:
            self.end()
            return
        self._is_cut = True
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def loop_ended(self) -> None:
        self._is_cut = True
        self.woken()

    def end(self) -> None:
        """It is over, whatever is unsent. Called where nobody else works for it."""
        if self.is_over:
            return
        self.is_over = True
        with ExitStack() as last:  # each of these, whatever the others raise
            last.callback(self._ended, self)
            last.callback(self._memory.close)
            last.callback(end_orderly, self._sock)
            last.callback(self._output.release)
            last.callback(self._exchange.abandon)
            self._loop.remove(self)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except (InvalidRequest, UnsupportedVersion, CloseConnection) as error:
            log.warning("connection closed", **self._names, reason=error)
            self._end_with_output()
        except OSError as error:
            log.info("connection lost", **self._names, reason=error)
            self.end()
        except Exception:
            log.exception("connection closed by a defect of the broker", **self._names)
            self.end()

    def _ready(self, events: int) -> None:
        if events == select.EPOLLOUT:
            self._go_on_later()  # what does not wait goes first
            return
        if not events:
            self._goes_on = False
        if events & select.EPOLLIN and self._may_read():
            self._receive()
        elif events & GONE:
            raise OSError(self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "the client has gone")
        elif events & select.EPOLLRDHUP and not (self._output or self._has_more):
            self._is_ending = True  # nobody waits for what is delayed
        self._go_on()

    def _look(self) -> None:
        """Something may have happened, or it is time for something."""
        self._goes_on = False  # its turn may have come while it was away
        if self._away.came_back():
            self._memory.next_request()
        if self._is_cut:
            self.end()
        if self.is_over:
            self._exchange.abandon()
            return
        memory, now_s = self._memory, self._loop.now_s
        if memory.was_cut:
            memory.came(0)  # raises
        self._exchange.settle()
        if memory.is_waiting:
            self._receive()
        self._go_on()
        if not self.is_over:
            self._rest(now_s)

    def _rest(self, now_s: float) -> None:
        """See to memory and time."""
        if self._unsent_s is not None and now_s >= self._unsent_s + self.send_timeout_s:
            raise OSError("the client takes nothing of its replies within the send timeout")
        frames = self._exchange.frames
        quiet_s = now_s - self._heard_s
        if (quiet_s >= QUIET_S or self._memory.is_wanted) and not (
            self.is_away or frames.pending or self._exchange.is_held
        ):
            frames.trim()
            self._memory.resize(frames.capacity)
        if quiet_s >= self._max_idle_s and not (self._exchange.is_waiting or self.is_away or self._output):
            log.info("connection closed", **self._names, reason="idle for connections.max.idle.ms")
            self.end()

    # --- requests

    def _may_read(self) -> bool:
        return not (self._is_ending or self.is_away or self._goes_on or self._output or self._exchange.is_held)

    @property
    def _has_more(self) -> bool:
        """What came waits for memory or for its turn. It counts, also when its client has left meanwhile: a member of a
        group that closes while it joins says behind that that it leaves.
        """
        return self._memory.is_waiting or self._goes_on or self._exchange.is_held

    def _receive(self) -> None:
        """Read what is there, once: others have their turn, too."""
        frames, memory = self._exchange.frames, self._memory
        room = frames.writable()
        if (frames.capacity != memory.capacity or memory.is_waiting) and not memory.resize(frames.capacity):
            return
        try:
            count = self._sock.recv_into(room)
        except BlockingIOError:
            return
        self._heard_s = self._loop.now_s
        if not count:
            self._is_ending = True
        frames.advance(count)
        if memory.counted:
            memory.came(count)

    def _go_on(self) -> None:
        """Take requests as long as they may be taken, and send replies."""
        exchange, left = self._exchange, MAX_REQUESTS
        while not (self.is_away or self._is_ending) and (request := exchange.next_request()) is not None:
            if not left:
                exchange.hold(request)
                self._go_on_later()
                break
            left -= 1
            begun_ns = time.perf_counter_ns()
            api_key = request.api_key
            waits = self._waits or may_wait(api_key) or self._slow_apis.is_slow(api_key, self._loop.now_s)
            if waits and exchange.is_waiting:
                exchange.hold(request)  # the replies before it could not leave while this is away
                break
            if (waits or self._replies >= MAX_HELD_REPLIES) and not self._flush():
                exchange.hold(request)
                break
            if waits:
                self._waits = False
                self._go_away(partial(self._answer_away, request, begun_ns))
                break
            self._answering = api_key
            try:
                reply = answer(self.connection, request.frame, self._ports, may_wait=False)
            except MustWait:
                exchange.hold(request)
                self._waits = True
            else:
                exchange.took(reply, api_key, begun_ns)
                self._memory.next_request()
            finally:
                self._answering = None
        if not self.is_away and self._flush() and not self._is_ending and (reply := exchange.reads_disk) is not None:
            self._go_away(partial(self._read_away, reply))
        if not self.is_over and not self.is_away:
            self._settle_down()

    def _settle_down(self) -> None:
        """What the loop is to tell of next."""
        if self._is_ending and not self._output:
            self.end()
            return
        loop, exchange, memory = self._loop, self._exchange, self._memory
        may_read = self._may_read() and not memory.is_waiting
        memory.is_receiving = may_read and exchange.frames.pending > 0
        if may_read:
            loop.want(self, READ)
        elif self._output:
            loop.want(self, WRITE)
        else:
            loop.want(self, 0 if self._has_more else select.EPOLLRDHUP)
        due_s = self._heard_s + (self._max_idle_s if exchange.frames.is_trimmed else QUIET_S)
        if due_s <= loop.now_s:
            due_s = loop.now_s + QUIET_S  # it waits for something else
        if self._unsent_s is not None:
            due_s = min(due_s, self._unsent_s + self.send_timeout_s)
        if memory.is_waiting:
            due_s = min(due_s, loop.now_s + LOOK_S)
        if exchange.is_waiting:
            due_s = min(due_s, exchange.deadline_s)
        loop.look_at(self, due_s)

    # --- replies

    def _put(self, parts: Sequence[bytes | FileSlice]) -> None:
        self._output.add(parts)
        self._replies += 1

    def _answered(self, api_key: int, begun_ns: int) -> None:
        self._heard_s = self._loop.now_s
        self.connection.counters.request(api_key, time.perf_counter_ns() - begun_ns)

    def _flush(self) -> bool:
        """Send; whether all went out."""
        if not self._output:
            return True
        before = self._output.gone
        sent = self._output.send(self._sock, self._loop.share_bytes)
        if sent is Sent.FULL:
            if self._unsent_s is None or self._output.gone != before:
                self._unsent_s = self._loop.now_s
        else:
            self._unsent_s = None
        if sent is Sent.ALL:
            self._replies = 0
        if sent is Sent.COLD:
            self._go_away(self._warm_away)
        elif sent is Sent.MORE:
            self._go_on_later()
        return sent is Sent.ALL

    def _go_on_later(self) -> None:
        if not self._goes_on:
            self._goes_on = True
            self._loop.again(self)

    def _end_with_output(self) -> None:
        """The client broke the rules: it gets the replies to what came before that."""
        self._is_ending = True
        if self.is_over or self.is_away:
            return
        try:
            self.end() if self._is_cut else self._go_on()
        except OSError:
            self.end()

    # --- elsewhere

    def _go_away(self, work: Callable[[], Callable[[], None]]) -> None:
        """Do ``work`` in another thread; what it answers is called in the loop. Raises OSError."""
        self._memory.is_receiving = False
        self._away.go(self, work)

    def _answer_away(self, request: Request, begun_ns: int) -> Callable[[], None]:
        reply = answer(self.connection, request.frame, self._ports)
        return partial(self._exchange.took, reply, request.api_key, begun_ns)

    def _read_away(self, reply: DelayedReply) -> Callable[[], None]:
        reply.read_disk()
        return self._exchange.settle

    def _warm_away(self) -> Callable[[], None]:
        part, position, end = self._output.cold()
        warm(part, position, end)
        return partial(self._output.warmed, end)
