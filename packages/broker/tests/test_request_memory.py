"""The bound for requests that are being received: large ones share it, small ones are outside of it."""

from __future__ import annotations

import threading

import pytest

from kit.waiting import wait_until
from raylog.broker.config import BROKER_SETTINGS
from raylog.broker.handlers.context import CloseConnection
from raylog.broker.net.request_memory import RequestMemory
from raylog.protocol.frames import GREEDY_BYTES

MB = 1 << 20


def memory(limit: int, wait_s: float = 0.0) -> RequestMemory:
    settings = BROKER_SETTINGS.settings({"queued.max.request.bytes": str(limit)})
    return RequestMemory(lambda: settings, wait_s)


def test_large_buffers_share_the_limit() -> None:
    shared = memory(3 * MB)
    shared.resize(4096, MB)
    shared.resize(4096, 2 * MB)
    assert shared.used == 3 * MB
    with pytest.raises(CloseConnection, match=r"queued.max.request.bytes=3145728 are taken"):
        shared.resize(4096, MB)
    assert shared.used == 3 * MB


def test_small_buffers_are_not_counted() -> None:
    shared = memory(0)
    for _ in range(1000):
        shared.resize(4096, GREEDY_BYTES)
    assert shared.used == 0


def test_one_alone_may_grow_beyond_the_limit() -> None:
    shared = memory(MB)
    shared.resize(4096, 2 * MB)
    shared.resize(2 * MB, 50 * MB)
    assert shared.used == 50 * MB
    with pytest.raises(CloseConnection):
        shared.resize(4096, MB)
    shared.resize(50 * MB, 0)
    shared.resize(4096, MB)
    assert shared.used == MB


def test_there_may_be_no_limit() -> None:
    shared = memory(-1)
    for _ in range(100):
        shared.resize(0, 100 * MB)
    assert shared.used == 10_000 * MB


def test_who_waits_goes_on_when_another_is_done() -> None:
    shared = memory(2 * MB, wait_s=30)
    shared.resize(0, 2 * MB)
    done = threading.Event()

    def grow() -> None:
        shared.resize(0, MB)
        done.set()

    thread = threading.Thread(target=grow)
    thread.start()
    assert not done.wait(0.05)
    shared.resize(2 * MB, 4096)
    thread.join(10)
    wait_until(done.is_set, 5, "the waiting connection has its memory")
    assert shared.used == MB
