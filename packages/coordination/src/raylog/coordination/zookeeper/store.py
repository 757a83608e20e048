"""The MetadataStore contract over ZooKeeper: of kazoo only the primitives.

kazoo calls back from its own threads; what it calls here only puts events on sinks. Where kazoo's
behaviour is not obvious: it drops all watches when the connection drops (before it reconnects), it replaces
an expired session by itself, and it would queue requests while disconnected, which would then be carried
out long after their caller gave up: so requests are refused at once while the store is not connected. Its
connection's thread, and the session with it, end by any exception that it does not foresee: it is started again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from kazoo.client import KazooClient
from kazoo.exceptions import (
    KazooException,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from raylog.coordination.host.clocks import monotonic_ms
from raylog.coordination.host.loops import Loops
from raylog.coordination.store.port import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    EventSink,
    NoNode,
    Op,
    OpResult,
    Session,
    SessionEvent,
    SessionExpired,
    SessionState,
    Set,
    Stat,
    StoreClosed,
    StoreUnauthorized,
    StoreUnavailable,
    Versioned,
    all_read,
    check_writable,
    is_path,
)
from raylog.coordination.zookeeper.auth import client_options
from raylog.coordination.zookeeper.errors import translated
from raylog.coordination.zookeeper.reads import ManyReads
from raylog.coordination.zookeeper.restart import ConnectionRestart
from raylog.coordination.zookeeper.watches import Watcher
from raylog.protocol.ids import MonotonicMs, TimestampMs

_STATES = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}
logging.getLogger("kazoo").addHandler(logging.NullHandler())  # its warnings are for who configures logging

_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 0.5}


class ZkStore:
    """A ZooKeeper client; see ``store.MetadataStore`` for the contract."""

    def __init__(
        self,
        hosts: str,
        *,
        auth: str = "",
        session_timeout_ms: int = 6_000,
        connect_timeout_ms: int = 15_000,
        request_timeout_ms: int | None = None,
        loops: Loops | None = None,
    ) -> None:
        """``hosts`` is ``host:port,…`` with an optional chroot, ``/raylog`` at the end (made when missing).

        ``auth`` are the credentials, ``user:password``, that every node is made for; "": all may read and write.
        Requests wait for their answer for ``request_timeout_ms``, by default the session timeout. ``loops``: hears when
        the connection had to be started again.
        """
        self._hosts, slash, chroot = hosts.partition("/")
        self._chroot = (slash + chroot).rstrip("/")
        self._auth = auth
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._request_timeout_s = (request_timeout_ms or session_timeout_ms) / 1000
        self._asked_timeout_ms = self._granted_timeout_ms = session_timeout_ms
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._state = SessionState.SUSPENDED
        self._acknowledged: MonotonicMs | None = None
        self._sinks: tuple[EventSink, ...] = ()
        self._connected = threading.Event()
        self._closed = False
        self._client = self._new_client()
        self._client.add_listener(self._on_state)
        self._reads = ManyReads(self._at, self._begin, self._answer)
        self._restart = ConnectionRestart(self._client, loops or Loops())
        self._learn_granted_timeout()

    def _new_client(self, session: Session | None = None) -> Any:
        return KazooClient(
            hosts=self._hosts,
            timeout=self._asked_timeout_ms / 1000,
            client_id=session and tuple(session),
            connection_retry=_RECONNECT,
            **client_options(self._auth),
        )

    def _learn_granted_timeout(self) -> None:
        """kazoo keeps what the server granted to itself, as two thirds of it: a connection's read timeout."""
        connection = self._client._connection
        connect = connection._connect

        def wrapped(*args: Any) -> tuple[float, float]:
            read_timeout, connect_timeout = connect(*args)
            self._granted_timeout_ms = round(read_timeout * 3 / 2)
            return read_timeout, connect_timeout

        connection._connect = wrapped

    # --- sessions

    def start(self) -> None:
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        try:
            self._client.start(timeout=self._connect_timeout_s)
        except KazooTimeoutError as error:
            raise StoreUnavailable(
                f"ZooKeeper at {self._hosts} does not answer: check the address and that it runs"
            ) from error
        if not self._connected.wait(self._connect_timeout_s):
            raise StoreUnavailable(f"ZooKeeper at {self._hosts} dropped the connection: try again")
        try:
            if self._chroot:
                self.ensure("/")
            self.children("/")
        except StoreUnauthorized as error:
            which = "refuses these credentials" if self._auth else "asks for credentials, and none were given"
            raise StoreUnauthorized(f"ZooKeeper at {self._hosts} {which} (zookeeper.auth)") from error

    def close(self) -> None:
        self._end(self._restart.close)

    def abandon(self) -> None:
        self._end(self._restart.abandon)

    def _end(self, end: Callable[[], None]) -> None:
        with self._lock:
            has_ended, self._closed = self._closed, True
        if not has_ended:
            end()

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
        return self._granted_timeout_ms

    @property
    def last_acknowledged_send_ms(self) -> MonotonicMs | None:
        return self._acknowledged

    def watch_session(self, sink: EventSink) -> None:
        with self._lock:
            self._sinks = (*self._sinks, sink)

    def _on_state(self, kazoo_state: str) -> None:
        """In kazoo's connection thread: note the state, tell the sinks, do nothing else."""
        with self._lock:
            if self._closed:
                return
            self._state = _STATES[kazoo_state]
            if self._state is SessionState.CONNECTED:
                session_id, password = self._client.client_id
                self._session = Session(session_id, password)
                self._connected.set()
            elif self._state is SessionState.LOST:
                self._acknowledged = None
            sinks, event = self._sinks, SessionEvent(self._state, self.session.id)
        for sink in sinks:
            sink.put(event)
        if self._state is SessionState.LOST:
            self._restart.if_dead()

    def heartbeat(self) -> MonotonicMs:
        session = self.session
        sent = monotonic_ms()
        # A follower that is cut off from its leader still answers reads, but keeps no session alive: a sync
        # asks the leader.
        self._ask("/", lambda: self._client.sync_async(self._at("/")))
        with self._lock:
            if self._session != session or self._state is not SessionState.CONNECTED:
                raise SessionExpired("the session changed while its heartbeat was under way")
            self._acknowledged = sent
        return sent

    def server_time_ms(self) -> TimestampMs:
        # ZooKeeper tells its time only by the stamps of what is written.
        path = self.create("/clock-", ephemeral=True, sequence=True)
        try:
            stat = self._ask(path, lambda: self._client.exists_async(self._at(path)))
            return TimestampMs(stat.mtime)
        finally:
            self.delete(path)

    def end_session(self, session: Session) -> None:
        # Where the session's process lives, it connects again at once, and ZooKeeper drops this connection then, before
        # it is asked to end the session or after: whichever is quicker is chance. So it is over when it is not found.
        deadline = monotonic_ms() + self._connect_timeout_s * 1_000
        while True:
            client = self._new_client(session)
            try:
                client.start(timeout=max(0.0, (deadline - monotonic_ms()) / 1_000))
                found = client.client_id  # None when it was dropped meanwhile
                if found is not None and found[0] != session.id:
                    return
            except KazooTimeoutError as error:
                if monotonic_ms() >= deadline:
                    raise StoreUnavailable(f"ZooKeeper at {self._hosts} does not answer") from error
            finally:
                client.stop()  # which ends the session, if it still has it
                client.close()

    # --- requests

    def _ask(self, path: str, request: Callable[[], Any]) -> Any:
        self._refuse_unless_connected(path)
        return self._answer(path, request())

    def _refuse_unless_connected(self, path: str) -> None:
        if self._closed:
            raise StoreClosed("the store is closed", path)
        if self._state is not SessionState.CONNECTED:
            if self._session is not None:
                self._restart.if_dead()
            raise StoreUnavailable(f"{path} was not asked for: not connected to ZooKeeper at {self._hosts}", path)

    def _answer(self, path: str, result: Any) -> Any:
        try:
            return result.get(timeout=self._request_timeout_s)
        except (KazooException, KazooTimeoutError) as error:
            raise translated(error, path) from error

    def get(self, path: str, watch: EventSink | None = None) -> Versioned | None:
        while is_path(path):
            try:
                data, stat = self._ask(path, lambda: self._client.get_async(self._at(path), self._watcher(watch)))
                return Versioned(data, stat.version)
            except NoNode:
                # a failed get leaves no watch: exists does. It was made between the two: get again.
                if watch is None or self.exists(path, watch) is None:
                    return None
        return None

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        return all_read(self.get_each(paths))

    def get_each(self, paths: Sequence[str]) -> list[Versioned | StoreUnauthorized | None]:
        return self._reads.get(paths)

    def children_many(self, paths: Sequence[str]) -> list[list[str]]:
        return all_read(self.children_each(paths))

    def children_each(self, paths: Sequence[str]) -> list[list[str] | StoreUnauthorized]:
        return self._reads.children(paths)

    def _begin(self, path: str, request: Any) -> Any:
        self._refuse_unless_connected(path)
        result = self._client.handler.async_result()
        self._client._call(request, result)
        return result

    def exists(self, path: str, watch: EventSink | None = None) -> Stat | None:
        if not is_path(path):
            return None
        return _stat(self._ask(path, lambda: self._client.exists_async(self._at(path), self._watcher(watch))))

    def exists_many(self, paths: Sequence[str]) -> list[Stat | None]:
        return [_stat(found) for found in self._reads.exists(paths)]

    def children(self, path: str, watch: EventSink | None = None) -> list[str]:
        while is_path(path):
            try:
                names = self._ask(path, lambda: self._client.get_children_async(self._at(path), self._watcher(watch)))
                return sorted(names)
            except NoNode:
                if watch is None or self.exists(path, watch) is None:
                    return []
        return []

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        parents: bool = False,
    ) -> str:
        check_writable((Create(path, data),))
        made: str = self._ask(
            path,
            lambda: self._client.create_async(
                self._at(path), data, ephemeral=ephemeral, sequence=sequence, makepath=parents
            ),
        )
        return made.removeprefix(self._chroot)

    def ensure(self, path: str) -> None:
        check_writable((Create(path),))
        self._ask(path, lambda: self._client.ensure_path_async(self._at(path)))

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        check_writable((Set(path, data),))
        return int(self._ask(path, lambda: self._client.set_async(self._at(path), data, version)).version)

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        check_writable((Delete(path),))
        self._ask(path, lambda: self._client.delete_async(self._at(path), version))

    def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        check_writable(ops)
        transaction = self._client.transaction()
        for op in ops:
            path = self._at(op.path)
            match op:
                case Create():
                    transaction.create(path, op.data, ephemeral=op.ephemeral, sequence=op.sequence)
                case Set():
                    transaction.set_data(path, op.data, op.version)
                case Delete():
                    transaction.delete(path, op.version)
                case Check():
                    transaction.check(path, op.version)
        results = self._ask(ops[0].path if ops else "/", transaction.commit_async)
        for index, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(result, (RolledBackError, RuntimeInconsistency)):
                raise translated(result, ops[index].path, index)
        return [self._result(op, result) for op, result in zip(ops, results, strict=True)]

    def _at(self, path: str) -> str:
        return self._chroot + path if path != "/" else self._chroot or "/"

    def _watcher(self, sink: EventSink | None) -> Watcher | None:
        return None if sink is None else Watcher(sink, self._chroot)

    def _result(self, op: Op, result: Any) -> OpResult:
        match op:
            case Create():
                return str(result).removeprefix(self._chroot)
            case Set():
                return int(result.version)
            case _:
                return None


def _stat(found: Any) -> Stat | None:
    return None if found is None else Stat(found.version, found.ephemeralOwner, found.czxid, found.mzxid)
