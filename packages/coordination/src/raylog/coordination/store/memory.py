"""The MetadataStore contract in memory: many sessions on one tree, so that whole clusters run in one process.

What goes wrong is scripted: :meth:`MemoryStore.suspend` and ``resume`` cut and mend the connection,
``MemoryTree.expire`` ends a session as the server does, ``abandon`` leaves a session behind as kill -9 does,
``MemoryTree.unreadable`` holds nodes that nobody may read, ``lose_next_answer`` carries a request out but loses its
answer, and ``fall_behind`` puts the client on a server that
lags: it reads what was, as ZooKeeper allows, until it writes, syncs (``heartbeat``) or connects anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from raylog.coordination.host.clocks import monotonic_ms, wall_ms
from raylog.coordination.store.memory_tree import MemoryTree, parent_of
from raylog.coordination.store.port import (
    ANY_VERSION,
    Create,
    Delete,
    EventSink,
    Op,
    OpResult,
    Session,
    SessionEvent,
    SessionExpired,
    SessionState,
    Set,
    Stat,
    StoreClosed,
    StoreError,
    StoreUnauthorized,
    StoreUnavailable,
    Versioned,
    all_read,
    check_writable,
)
from raylog.protocol.ids import MonotonicMs, TimestampMs

T = TypeVar("T")


class MemoryStore:
    """A client of a :class:`MemoryTree`; see ``store.MetadataStore`` for the contract."""

    def __init__(
        self,
        tree: MemoryTree,
        *,
        session_timeout_ms: int = 6_000,
        clock: Callable[[], MonotonicMs] = monotonic_ms,
    ) -> None:
        self._tree = tree
        self._timeout_ms = session_timeout_ms
        self._clock = clock
        self._session: Session | None = None
        self._state = SessionState.SUSPENDED
        self._closed = False
        self._sinks: list[EventSink] = []
        self._acknowledged: MonotonicMs | None = None
        self._lose_answer = False
        self.before_answer: Callable[[], None] | None = None
        """Scripted: runs between a request's effect and its answer, so that a test can let time pass."""

    # --- the script

    def suspend(self) -> None:
        """Cut the connection: requests are not answered and watches are gone; the session lives on."""
        with self._tree.lock:
            self._tree.forget_watches(self)
            self._become(SessionState.SUSPENDED)

    def resume(self) -> None:
        """Mend the connection: the same session, or a new one when it has ended meanwhile."""
        with self._tree.lock:
            if not self._tree.is_live(self.session.id):
                self._become(SessionState.LOST)
                self._session = self._tree.open_session(self)
            self._become(SessionState.CONNECTED)

    def lose_next_answer(self) -> None:
        """The next request is carried out, but the caller gets StoreUnavailable."""
        self._lose_answer = True

    def fall_behind(self) -> None:
        """From now on reads show what there is now, and watches tell nothing, whatever others write."""
        self._tree.fall_behind(self)

    def catch_up(self) -> None:
        """The server has seen all writes again."""
        self._tree.catch_up(self)

    # --- sessions

    def start(self) -> None:
        with self._tree.lock:
            self._session = self._tree.open_session(self)
            self._become(SessionState.CONNECTED)

    def close(self) -> None:
        with self._tree.lock:
            if self._closed:
                return
            self._closed = True
            if self._session is not None:
                self._tree.end_session(self._session, told=False)
            self._tree.forget_watches(self)

    def abandon(self) -> None:
        """Also what the death of the process is."""
        with self._tree.lock:
            self._tree.forget_watches(self)
            self._closed = True
            self._sinks.clear()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def session(self) -> Session:
        if self._session is None:
            raise StoreUnavailable("the store was not started")
        return self._session

    @property
    def session_state(self) -> SessionState:
        return self._state

    @property
    def session_timeout_ms(self) -> int:
        return self._timeout_ms

    @property
    def last_acknowledged_send_ms(self) -> MonotonicMs | None:
        return self._acknowledged

    def watch_session(self, sink: EventSink) -> None:
        self._sinks.append(sink)

    def session_ended(self) -> None:
        """The tree tells that it has ended this store's session; a store that is cut off learns it later."""
        if self._closed or self._state is not SessionState.CONNECTED:
            return
        self.suspend()
        self.resume()

    def _become(self, state: SessionState) -> None:
        self._state = state
        if state is SessionState.LOST:
            self._acknowledged = None
        for sink in self._sinks:
            sink.put(SessionEvent(state, self.session.id))

    def heartbeat(self) -> MonotonicMs:
        sent, session = self._clock(), self.session
        self._ask(self.catch_up)
        with self._tree.lock:
            if session != self.session:
                raise SessionExpired("the session ended while its heartbeat was under way")
            self._acknowledged = sent
        return sent

    def server_time_ms(self) -> TimestampMs:
        return self._ask(wall_ms)

    def end_session(self, session: Session) -> None:
        self._ask(lambda: self._tree.end_session(session))

    # --- requests

    def _ask(self, request: Callable[[], T]) -> T:
        with self._tree.lock:
            if self._closed:
                raise StoreClosed("the store is closed")
            if self._session is None or self._state is not SessionState.CONNECTED:
                raise StoreUnavailable("not connected to the metadata store")
            lost, self._lose_answer = self._lose_answer, False
            try:
                answer = request()
            except StoreError as error:
                if lost:
                    raise StoreUnavailable("the answer was lost") from error
                raise
        if self.before_answer:
            self.before_answer()
        if lost:
            raise StoreUnavailable("the answer was lost")
        return answer

    def get(self, path: str, watch: EventSink | None = None) -> Versioned | None:
        return self._ask(lambda: self._watched(path, watch, self._tree.get(path, self)))

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        return all_read(self.get_each(paths))

    def get_each(self, paths: Sequence[str]) -> list[Versioned | StoreUnauthorized | None]:
        return self._ask(lambda: [_or_closed(self._tree.get, path, self) for path in paths])

    def exists(self, path: str, watch: EventSink | None = None) -> Stat | None:
        return self._ask(lambda: self._watched(path, watch, self._tree.stat(path, self)))

    def exists_many(self, paths: Sequence[str]) -> list[Stat | None]:
        return self._ask(lambda: [self._tree.stat(path, self) for path in paths])

    def _watched(self, path: str, watch: EventSink | None, answer: T) -> T:
        if watch is not None:
            self._tree.watch(path, self, watch)
        return answer

    def children(self, path: str, watch: EventSink | None = None) -> list[str]:
        def read() -> list[str]:
            names = self._tree.children(path, self)
            if watch is not None:
                self._tree.watch(path, self, watch, children=names is not None)
            return names or []

        return self._ask(read)

    def children_many(self, paths: Sequence[str]) -> list[list[str]]:
        return all_read(self.children_each(paths))

    def children_each(self, paths: Sequence[str]) -> list[list[str] | StoreUnauthorized]:
        found = self._ask(lambda: [_or_closed(self._tree.children, path, self) for path in paths])
        return [names or [] for names in found]

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        parents: bool = False,
    ) -> str:
        if parents:
            check_writable((Create(path, data),))
            try:
                self.ensure(parent_of(path))
            except StoreError as error:
                error.path = path
                raise
        [made] = self.multi([Create(path, data, ephemeral, sequence)])
        assert isinstance(made, str)
        return made

    def ensure(self, path: str) -> None:
        check_writable((Create(path),))

        def make() -> None:
            self.catch_up()
            names = path.strip("/").split("/")
            for depth in range(1, len(names) + 1):
                node = "/" + "/".join(names[:depth])
                if node != "/" and self._tree.stat(node) is None:
                    self._tree.multi([Create(node)], self.session.id)

        try:
            self._ask(make)
        except StoreError as error:
            error.path = path
            raise

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        [new] = self.multi([Set(path, data, version)])
        assert isinstance(new, int)
        return new

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self.multi([Delete(path, version)])

    def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        check_writable(ops)

        def write() -> list[OpResult]:
            self.catch_up()
            return self._tree.multi(ops, self.session.id)

        return self._ask(write)


def _or_closed(read: Callable[[str, Any], T], path: str, store: MemoryStore) -> T | StoreUnauthorized:
    try:
        return read(path, store)
    except StoreUnauthorized as error:
        return error
