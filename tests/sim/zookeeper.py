"""ZooKeeper in virtual time: the memory store's tree, whose sessions lapse when nothing was heard of them.

Every call of a broker (:class:`SimStore`) may take its time, get lost on the way, or be carried out without its answer
arriving; meanwhile others act (``Engine.elsewhere``). Watch events come late, but in order, as ZooKeeper keeps it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import (
    EventSink,
    Op,
    OpResult,
    SessionExpired,
    SessionState,
    Stat,
    StoreError,
    StoreEvent,
    StoreUnauthorized,
    StoreUnavailable,
    Versioned,
)
from raylog.protocol.ids import MonotonicMs

from .engine import Engine, Process, Thread
from .local import StepFailed

T = TypeVar("T")

SESSION_TIMEOUT_MS = 3_000
CHECK_MS = 100


@dataclass
class Weather:
    """How the way to ZooKeeper is at the moment; faults change it."""

    delay: float = 0.05
    """How often a call takes its time, so that others act in between."""
    slow: int = 0
    """So many faults make it slow: then every other call takes its time, and much of it."""
    far: set[int] = field(default_factory=set)
    """Brokers to which alone it is slow."""
    lost: float = 0.0
    """How often a call does not arrive."""
    answer_lost: float = 0.0
    """How often it is carried out, and nobody hears of it."""
    behind: float = 0.003
    """How often the server that is read from begins to lag."""


class Ensemble(MemoryTree):
    """The server's side. ``on_write`` is told of every operation that was carried out: what the store holds is the
    truth that the invariants are about.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine
        self.on_write: Callable[[Sequence[Op], Sequence[OpResult], int], None] = lambda ops, results, session: None
        self.stores: list[SimStore] = []
        self.strikes = False
        """A fault has waited for the write that was carried out: it strikes before who wrote goes on."""
        self.is_behind = 0
        """How often a server began to lag."""
        self.thread = Thread(Process("zookeeper"))
        self._sinks = 0
        self._told: list[tuple[int, int, SimSink, StoreEvent]] = []
        self.engine.at(CHECK_MS, self.thread, self._check_sessions)

    def multi(self, ops: Sequence[Op], session_id: int) -> list[OpResult]:
        results = super().multi(ops, session_id)
        self.on_write(ops, results, session_id)
        self.tell()
        return results

    def write_foreign(self, ops: Sequence[Op]) -> None:
        """Another program writes, as far as it can; nobody else hears of it than by watches."""
        try:
            super().multi(ops, 0)
        except StoreError:
            return
        self.tell()

    def _check_sessions(self) -> None:
        """Sessions are heard of while their process runs and the way is open; others lapse."""
        now = self.engine.now
        for store in list(self.stores):
            if store.is_reachable and store.session_state is SessionState.CONNECTED:
                store.heard_ms = now
            elif self.is_live(store.session.id) and now - store.heard_ms >= store.session_timeout_ms:
                self.engine.note(f"zookeeper: session {store.session.id} of {store.thread.process.name} lapses")
                self.expire(store.session.id)
                self.tell()
            if not store.thread.process.alive and not self.is_live(store.session.id):
                self.stores.remove(store)
        self.engine.at(CHECK_MS, self.thread, self._check_sessions)

    def sink(self, thread: Thread, take: Callable[[StoreEvent], None]) -> SimSink:
        """A sink whose events are steps of ``thread``."""
        return SimSink(self, self.number(), thread, take)

    def number(self) -> int:
        """Of one more sink."""
        self._sinks += 1
        return self._sinks

    def put(self, sink: SimSink, event: StoreEvent) -> None:
        """An event is on its way to its sink. Sorted before it goes: the tree keeps its watches in sets."""
        self._told.append((sink.number, len(self._told), sink, event))

    def tell(self) -> None:
        told, self._told = self._told, []
        for _, _, sink, event in sorted(told, key=lambda each: each[:2]):
            sink.deliver(event)


class SimSink:
    """Where a thread's events are put: it gets them as steps of its own, late and in order."""

    def __init__(self, ensemble: Ensemble, number: int, thread: Thread, take: Callable[[StoreEvent], None]) -> None:
        self.number = number
        self._ensemble = ensemble
        self._thread = thread
        self._take = take
        self._due = 0
        self._waiting: deque[StoreEvent] = deque()

    def put(self, item: StoreEvent, /) -> None:
        self._ensemble.put(self, item)

    def deliver(self, event: StoreEvent) -> None:
        engine = self._ensemble.engine
        delay = engine.random.choice((0, 0, 1, 1, 2, 5, 40, 200))
        self._due = max(self._due, engine.now + delay)
        self._waiting.append(event)
        engine.at(self._due - engine.now, self._thread, lambda: self._take(self._waiting.popleft()))


class SimStore(MemoryStore):
    """One thread's way to the ensemble; all threads of a process share the session of ``process_store``."""

    def __init__(
        self, ensemble: Ensemble, weather: Weather, thread: Thread, clock: Callable[[], MonotonicMs], broker: int = 0
    ) -> None:
        """``broker``: whose process it is; 0 for a member of a group."""
        super().__init__(ensemble, session_timeout_ms=SESSION_TIMEOUT_MS, clock=clock)
        self._broker = broker
        self.thread = thread
        """The thread that calls at the moment; its broker sets it."""
        self.is_cut = False
        self.heard_ms = 0
        self.odd_calls: dict[Thread, int] = {}
        """So many of the next calls of a thread end by what is no error of the port's."""
        self._ensemble = ensemble
        self._weather = weather

    def start(self) -> None:
        super().start()
        self.heard_ms = self._ensemble.engine.now
        self._ensemble.stores.append(self)
        self._ensemble.tell()

    @property
    def is_started(self) -> bool:
        return self._session is not None

    @property
    def is_reachable(self) -> bool:
        process = self.thread.process
        return process.alive and process.paused_until <= self._ensemble.engine.now and not self.is_cut

    def session_ended(self) -> None:
        if self.is_reachable:
            super().session_ended()
        elif self.session_state is SessionState.CONNECTED:
            self.suspend()  # it finds out when it runs again

    def look_again(self) -> None:
        """After a pause or a cut: connect anew when the connection went meanwhile."""
        if self.is_started and self.is_reachable and self.session_state is not SessionState.CONNECTED:
            self.resume()
            self.heard_ms = self._ensemble.engine.now
        self._ensemble.tell()

    def cut(self) -> None:
        self.is_cut = True
        if self.is_started and self.session_state is SessionState.CONNECTED:
            self.suspend()
        self._ensemble.tell()

    def mend(self) -> None:
        self.is_cut = False
        self.look_again()

    def get(self, path: str, watch: EventSink | None = None) -> Versioned | None:
        self._may_lag()
        return super().get(path, watch)

    def get_each(self, paths: Sequence[str]) -> list[Versioned | StoreUnauthorized | None]:
        self._may_lag()
        return super().get_each(paths)

    def exists(self, path: str, watch: EventSink | None = None) -> Stat | None:
        self._may_lag()
        return super().exists(path, watch)

    def children(self, path: str, watch: EventSink | None = None) -> list[str]:
        self._may_lag()
        return super().children(path, watch)

    def _may_lag(self) -> None:
        """The server sees nothing new for a while, unless it is asked for a sync or a write."""
        engine = self._ensemble.engine
        if engine.chance(self._weather.behind) and self.is_started:
            self._ensemble.is_behind += 1
            self.fall_behind()
            engine.at(engine.random.choice((20, 100, 400, 1_000)), self._ensemble.thread, self._catch_up)

    def _catch_up(self) -> None:
        self.catch_up()
        self._ensemble.tell()

    def _ask(self, request: Callable[[], T]) -> T:
        engine, weather, thread = self._ensemble.engine, self._weather, self.thread
        session = self.session
        if self.odd_calls.get(thread):
            self.odd_calls[thread] -= 1
            raise StepFailed("zookeeper's client raises what nobody knows of")
        is_slow = weather.slow > 0 or self._broker in weather.far
        if engine.chance(0.5 if is_slow else weather.delay):
            engine.elsewhere(thread, engine.random.choice((50, 200, 800, 1_500) if is_slow else (1, 2, 5, 20)))
            self.thread = thread
            if session != self.session:
                raise SessionExpired("the session ended while the request was under way")
        if engine.chance(weather.lost):
            raise StoreUnavailable("the request was lost")
        if engine.chance(weather.answer_lost):
            self.lose_next_answer()
        try:
            answer = super()._ask(request)
        finally:
            self._ensemble.tell()
        self.heard_ms = engine.now
        strikes, self._ensemble.strikes = self._ensemble.strikes, False
        if strikes or engine.chance(weather.delay / 2):
            engine.elsewhere(thread, engine.random.choice((1, 2, 5)))
            self.thread = thread
        return answer
