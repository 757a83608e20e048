"""One thread that serves all sockets (D4): what epoll reports, what was woken, and what is due.

A :class:`~raylog.broker.net.source.Source` is a socket with what is to be done about it. Its methods run in the loop's
thread, one at a time, and must not wait: what could is done elsewhere while the source is *away*
(:meth:`EventLoop.leave`), and goes on in the loop (:meth:`EventLoop.come_back`). Other threads say by
:meth:`EventLoop.wake` that there is something new to see.

A disk may hang in the midst of a write that nobody expected to wait. So a second thread watches: where one source keeps
the loop for longer than STUCK_S, the watcher starts another thread that goes on with all others, and the thread that
is stuck ends when it comes back, and its source comes back to the loop. All that the loop knows is kept in its fields
for that, and nothing in its thread.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from raylog.broker.events import EventLog
from raylog.broker.net.source import DueTime, Source
from raylog.coordination.host.loops import Loop, Loops

__all__ = ["STUCK_S", "EventLoop"]

log = EventLog(__name__)

STUCK_S = 0.2
"""So long may one source keep the loop."""

LAST_PAUSE_S = 0.5
"""The longest pause after a failure: all clients wait meanwhile."""

IDLE_LOOK_S = 0.25
"""How often the watcher looks while the loop has nothing to do."""

LEAST_SHARE_BYTES, MOST_SHARE_BYTES = 1 << 16, 1 << 20
"""What one source may send in its turn, while others have something to say and while nobody has: 64 KB take 15 µs."""

MAX_EVENTS = 256
"""So many are taken at once."""

MOST_STALE = 100

_SILENT = select.EPOLLET
"""What is reported of a source that is away: nothing twice, not even that the peer has hung up."""

_UNKNOWN = -1
"""Two threads may have asked for different interests."""


class EventLoop:
    """See the module. ``wake`` and ``come_back`` are for any thread, the rest for sources in their turn."""

    def __init__(self, loops: Loops) -> None:
        """``loops``: its owner's, of which it makes two."""
        self._loops = loops
        self._epoll = select.epoll()
        self._sources: dict[int, Source] = {}
        self._events: deque[tuple[int, int]] = deque()
        """Reported and not looked at yet."""
        self._woken: deque[Source] = deque()
        self._back: deque[Source] = deque()
        self._again: deque[Source] = deque()
        self._timers: list[tuple[float, int, DueTime]] = []
        """A heap, by time and number; those without a source are stale."""
        self._stale = 0
        self._numbers = itertools.count()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._is_polling = False
        self.share_bytes = MOST_SHARE_BYTES
        """What a source may send in its turn."""
        self.now_s = time.monotonic()
        """The monotonic time of this pass."""
        self._lock = threading.Lock()
        """For what two threads may do at a change of threads."""
        self._generation = 0
        """Of the thread that serves now; each takeover begins another."""
        self._at: tuple[Source, float] | None = None
        """Which source is served in this pass. Another tuple each time, so that each turn is told from the next."""
        self._stopping = threading.Event()
        self._running = 0
        """Threads that have not ended."""
        self._has_ended = False
        self._threads: list[Loop] = []
        self._watcher = loops.loop("net-watch", self._watch)

    # --- for its owner

    def start(self) -> None:
        """Begin to serve."""
        self._start_thread()
        self._watcher.start()

    def stop(self, timeout_s: float) -> None:
        """End its threads; a thread that is stuck is waited for up to ``timeout_s``.

        What is left is given back when the last thread has ended, and when the last that is away has come back.
        """
        self._stopping.set()
        self._ring()
        self._watcher.stop()
        deadline_s = time.monotonic() + timeout_s
        self._watcher.join(timeout_s)
        for thread in self._threads:
            thread.stop()
            thread.join(max(0.0, deadline_s - time.monotonic()))
        self._end_if_over()  # the last thread does so by itself, unless none was left

    # --- for all threads

    def wake(self, source: Source) -> None:
        """Have ``source.woken`` called."""
        if not source.is_woken:
            source.is_woken = True
            self._woken.append(source)
            if self._is_polling:
                self._ring()

    def come_back(self, source: Source) -> None:
        """The work that was done elsewhere is over."""
        self._back.append(source)
        if self._is_polling:
            self._ring()
        if self._has_ended:
            self._part()

    # --- for sources

    def add(self, source: Source, interest: int) -> None:
        """Look after it from now on. Raises OSError, also when the loop has ended."""
        with self._lock:
            if self._has_ended:
                raise OSError(errno.ESHUTDOWN, "the server has stopped")
            source.interest = interest
            self._epoll.register(source.fileno(), interest)
            self._sources[source.fileno()] = source

    def remove(self, source: Source) -> None:
        """Forget it; its descriptor may be closed then."""
        descriptor = source.fileno()
        if self._sources.pop(descriptor, None) is source:
            with self._lock:
                self._forget_time(source)
            with contextlib.suppress(OSError, ValueError):  # ValueError: the loop has ended
                self._epoll.unregister(descriptor)

    def want(self, source: Source, interest: int) -> None:
        """What epoll is to report of it."""
        if interest != source.interest:
            source.interest = interest
            self._epoll.modify(source.fileno(), interest)

    def look_at(self, source: Source, due_s: float) -> None:
        """Have ``source.woken`` called at that monotonic time, if not earlier; then ask again."""
        timer = source.timer
        if timer is None or due_s < timer.due_s:
            with self._lock:  # a thread that is stuck has times, too
                self._forget_time(source)
                source.timer = DueTime(due_s, source)
                heapq.heappush(self._timers, (due_s, next(self._numbers), source.timer))

    def _forget_time(self, source: Source) -> None:
        """What it was due at is stale; the heap must not fill with such. With the lock."""
        timer, source.timer = source.timer, None
        if timer is None:
            return
        timer.source = None
        self._stale += 1
        if self._stale > MOST_STALE + len(self._timers) // 2:
            live = [timer for timer in self._timers if timer[2].source is not None]
            heapq.heapify(live)
            self._timers, self._stale = live, 0

    def again(self, source: Source) -> None:
        """Have ``source.ready(0)`` called, to go on with something long, after others have had their turn."""
        self._again.append(source)

    def leave(self, source: Source) -> None:
        """Another thread works for ``source`` from now on, until :meth:`come_back`."""
        with self._lock:
            source.away += 1

    # --- the thread

    def _start_thread(self) -> None:
        turn = partial(self._turn, self._generation)
        thread = self._loops.loop("net", turn, finish=self._thread_ended, last_pause_s=LAST_PAUSE_S)
        self._threads = [each for each in self._threads if each.is_alive] + [thread]
        self._running += 1
        try:
            thread.start()
        except BaseException:
            self._running -= 1
            raise

    def _thread_ended(self) -> None:
        with self._lock:
            self._running -= 1
        self._end_if_over()

    def _end_if_over(self) -> None:
        """Once it was stopped and no thread is left: have all sources give back what they have."""
        with self._lock:
            if self._running or self._has_ended or not self._stopping.is_set():
                return
            self._has_ended = True
            left = [source for source in self._sources.values() if not source.away]
            self._epoll.close()
            os.close(self._bell)
        for source in left:
            self._loops.guarded("net", source.loop_ended)
        self._part()

    def _part(self) -> None:
        """The loop has ended: see to those that have come back. Two threads may do so, each with some of them."""
        with contextlib.suppress(IndexError):
            while True:
                source = self._back.popleft()
                with self._lock:
                    source.away -= 1
                if not source.away:
                    self._loops.guarded("net", source.loop_ended)

    def _turn(self, generation: int) -> bool:
        """One pass; False when another thread has taken over, or all is over."""
        if self._stopping.is_set() or generation != self._generation:
            return False
        if not self._events:  # what a thread that got stuck left must not be there twice
            self._poll()
        return (
            self._serve_events(generation)
            and self._serve_woken(generation)
            and self._serve_again(generation)
            and self._serve_due(generation)
        )

    def _serve_events(self, generation: int) -> bool:
        while self._events:
            descriptor, events = self._events.popleft()
            source = self._sources.get(descriptor)
            if source is None:
                self._silence_bell(descriptor)
            elif source.away:
                with contextlib.suppress(ValueError):  # what works for it has closed it just now
                    self.want(source, _SILENT)
            else:
                if events & select.EPOLLIN:
                    self.share_bytes = LEAST_SHARE_BYTES
                if not self._serve(generation, source, partial(source.ready, events)):
                    return False
        return True

    def _serve_woken(self, generation: int) -> bool:
        """Those that come back, and those that were woken."""
        for _ in range(len(self._back)):
            source = self._back.popleft()
            source.interest = _UNKNOWN
            with self._lock:
                source.away -= 1
            if not source.away and not self._serve(generation, source, source.woken):
                return False
        for _ in range(len(self._woken)):
            source = self._woken.popleft()
            source.is_woken = False
            if not source.away and not self._serve(generation, source, source.woken):
                return False
        return True

    def _serve_again(self, generation: int) -> bool:
        """Those that go on with something long: for as long as the others took in this pass, and one at least."""
        begun_s = time.monotonic()
        until_s = 2 * begun_s - self.now_s
        for _ in range(len(self._again)):
            source = self._again.popleft()
            if not source.away and not self._serve(generation, source, partial(source.ready, 0)):
                return False
            if time.monotonic() >= until_s:
                break
        self.share_bytes = min(2 * self.share_bytes, MOST_SHARE_BYTES)
        return True

    def _poll(self) -> None:
        timeout_s = -1.0
        if timers := self._timers:
            timeout_s = max(timers[0][0] - time.monotonic(), 0.0)
        self._is_polling = True
        if self._woken or self._back or self._again or self._events:
            timeout_s = 0.0
        try:
            self._events.extend(self._epoll.poll(timeout_s, MAX_EVENTS))
        finally:
            self._is_polling = False
        self.now_s = time.monotonic()

    def _serve_due(self, generation: int) -> bool:
        while (source := self._take_due()) is not None:
            if not source.away and not self._serve(generation, source, source.woken):
                return False
        return True

    def _take_due(self) -> Source | None:
        with self._lock:
            while self._timers and self._timers[0][0] <= self.now_s:
                source = heapq.heappop(self._timers)[2].source
                if source is not None:
                    source.timer = None
                    return source
                self._stale -= 1
        return None

    def _serve(self, generation: int, source: Source, act: Callable[[], None]) -> bool:
        """Let ``source`` act; False when another thread took over meanwhile."""
        self._at = (source, self.now_s)
        try:
            act()
        finally:
            with self._lock:
                is_mine = generation == self._generation
                if is_mine:
                    self._at = None
            if not is_mine:
                self.come_back(source)
        return is_mine

    def _ring(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._has_ended:  # its descriptor may be another's
                os.eventfd_write(self._bell, 1)

    def _silence_bell(self, descriptor: int) -> None:
        if descriptor == self._bell:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._bell)

    # --- the watcher

    def _watch(self) -> bool:
        at = self._at
        if self._stopping.wait(IDLE_LOOK_S if at is None else STUCK_S):
            return False
        if at is not None and self._at is at:
            self._take_over(at)
        return True

    def _take_over(self, at: tuple[Source, float]) -> None:
        """The loop's thread is stuck: have another one go on."""
        with self._lock:
            if self._at is not at:
                return
            self._generation += 1
            at[0].away += 1
            self._at = None  # before the thread begins, which says there what it serves
            try:
                self._start_thread()
            except BaseException:  # no more threads, say: the one that is stuck goes on, or the next look tries again
                self._generation -= 1
                at[0].away -= 1
                self._at = at
                raise
        at[0].stuck()
        log.warning("a connection kept the loop, which goes on without it", client=str(at[0]))
