"""kazoo's own threads end by an exception: the store takes a new session, as if the old one had expired."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from kit.machine import scaled, scaled_ms
from kit.waiting import wait_until
from kit.zookeeper import running_zookeeper
from raylog.coordination.host.loops import Loops
from raylog.coordination.store.port import Session, SessionEvent, SessionState, StoreError, StoreEvent, StoreUnavailable
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper
from raylog.coordination.zookeeper.store import ZkStore

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

WAIT_S = 30.0


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


def connection_thread(store: ZkStore) -> threading.Thread:
    thread = store._client._connection._connection_routine
    assert isinstance(thread, threading.Thread)
    return thread


def end_by(thread: threading.Thread, error: type[BaseException], store: ZkStore) -> None:
    """Have the thread meet ``error`` wherever it is, which it does once it has something to do."""
    assert thread.ident is not None
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error)) == 1

    def ended() -> bool:
        try:
            store.exists("/")
        except StoreError:
            pass
        return not thread.is_alive()

    wait_until(ended, WAIT_S, "the thread has ended")


class OftenKicked(ZkStore):
    """Where it would end a session, the session's own process connects again first, so that ZooKeeper drops the
    connection, which kazoo takes for a timeout: that often, and then no more."""

    kicks = 2

    def _new_client(self, session: Session | None = None) -> Any:
        client = super()._new_client(session)
        if session is not None and self.kicks:
            self.kicks -= 1

            def kicked(timeout: float) -> None:
                raise KazooTimeoutError("Connection time-out")

            client.start = kicked
        return client


def test_ending_session_of_living_process_is_tried_again(zookeeper: EmbeddedZooKeeper) -> None:
    with (
        ZkStore(zookeeper.address, session_timeout_ms=scaled_ms(10_000)) as living,
        OftenKicked(zookeeper.address) as other,
    ):
        left = living.session
        other.end_session(left)
        assert other.kicks == 0
        wait_until(lambda: living.session != left, WAIT_S, "it has another session")


class DroppedOnce(ZkStore):
    """The session's process has connected again before the first client is to end its session."""

    drops = 1

    def _new_client(self, session: Session | None = None) -> Any:
        client = super()._new_client(session)
        if session is not None and self.drops:
            self.drops -= 1
            start, dropped = client.start, threading.Event()
            client.add_listener(lambda state: dropped.set() if state == KazooState.SUSPENDED else None)

            def start_and_be_dropped(timeout: float) -> None:
                start(timeout)
                assert dropped.wait(scaled(WAIT_S))

            client.start = start_and_be_dropped
        return client


def test_session_is_over_when_it_is_not_found(zookeeper: EmbeddedZooKeeper) -> None:
    with (
        ZkStore(zookeeper.address, session_timeout_ms=scaled_ms(10_000)) as living,
        DroppedOnce(zookeeper.address) as other,
    ):
        left = living.session
        other.end_session(left)
        assert other.drops == 0
        wait_until(lambda: living.session != left, WAIT_S, "it has another session")


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_connection_thread_that_ends_is_started_again(zookeeper: EmbeddedZooKeeper, error: type[BaseException]) -> None:
    loops = Loops()
    with ZkStore(zookeeper.address, session_timeout_ms=scaled_ms(4_000), loops=loops) as store:
        events: queue.SimpleQueue[StoreEvent] = queue.SimpleQueue()
        store.watch_session(events)
        before, thread = store.session, connection_thread(store)
        store.create("/ours", ephemeral=True)
        end_by(thread, error, store)
        told = [events.get(timeout=scaled(WAIT_S)), events.get(timeout=scaled(WAIT_S))]
        assert [event.state for event in told if isinstance(event, SessionEvent)] == [
            SessionState.LOST,
            SessionState.CONNECTED,
        ]
        assert store.session != before
        wait_until(lambda: store.exists("/ours") is None, WAIT_S, "the old session has ended")
        store.create("/ours", ephemeral=True)
        store.heartbeat()
        store.delete("/ours")


def test_store_is_abandoned_though_its_server_does_not_answer(tmp_path: Path) -> None:
    with running_zookeeper(tmp_path) as server:
        connected, waiting = (ZkStore(server.address, session_timeout_ms=scaled_ms(4_000)) for _ in range(2))
        for store in (connected, waiting):
            store.start()
        assert server.jvm is not None
        os.kill(server.jvm.pid, signal.SIGSTOP)
        wait_until(lambda: waiting.session_state is SessionState.SUSPENDED, WAIT_S, "the connection is made anew")
        for store in (waiting, connected):
            thread = connection_thread(store)
            store.abandon()
            assert not thread.is_alive()


@pytest.mark.parametrize("end", [ZkStore.close, ZkStore.abandon])
def test_store_whose_connection_has_ended_can_be_closed(
    zookeeper: EmbeddedZooKeeper, end: Callable[[ZkStore], None]
) -> None:
    def no_threads(_: str) -> None:
        raise RuntimeError("can't start new thread")

    loops = Loops(before_step=no_threads)
    store = ZkStore(zookeeper.address, session_timeout_ms=scaled_ms(4_000), loops=loops)
    store.start()
    end_by(connection_thread(store), SystemExit, store)
    assert store.session_state is SessionState.LOST
    assert loops.names() == {"zookeeper-restart"}
    end(store)
    wait_until(lambda: not loops.names(), WAIT_S, "nothing tries to start it again")
    with pytest.raises(StoreError, match="closed"):
        store.exists("/")


def test_store_that_cannot_start_leaves_no_thread() -> None:
    """The server grants a session, and then answers nothing."""
    granted = struct.pack(">iiiqi16s?", 37, 0, 4_000, 1, 16, bytes(16), False)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def grant() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(granted)
                while connection.recv(1024):
                    pass

        serving = threading.Thread(target=grant, daemon=True)
        serving.start()
        store = ZkStore(
            f"127.0.0.1:{server.getsockname()[1]}", session_timeout_ms=scaled_ms(4_000), request_timeout_ms=300
        )
        with pytest.raises(StoreUnavailable):
            store.start()
        thread = store._client._connection._connection_routine
        serving.join(scaled(WAIT_S))
        assert thread is None or not thread.is_alive()
        assert not serving.is_alive(), "the store has left its connection open"
