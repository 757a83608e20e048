"""A client that cannot be made leaves neither descriptors nor threads, and does not wait for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from kit.waiting import wait_until
from raylog.client import Admin, Consumer, Producer
from raylog.client.aio import AsyncConsumer, AsyncProducer
from raylog.protocol.errors import InvalidConfig

pytestmark = pytest.mark.system

NOBODY = "localhost:1"
REPORTED = {"stats_cb": lambda _: None, "statistics_interval_ms": 60_000}
DOORS = [(Admin, {}), *((door, REPORTED) for door in (Producer, AsyncProducer, Consumer, AsyncConsumer))]
each_door = pytest.mark.parametrize(("door", "config"), DOORS, ids=lambda given: getattr(given, "__name__", ""))


def test_settings_that_go_not_together_leave_nothing_open() -> None:
    for door in (Producer, AsyncProducer):
        for kind in ("none", "zstd"):
            with pytest.raises(InvalidConfig), nothing_left():
                made(door, compression_type=kind, compression_level=99)


@each_door
def test_a_client_for_which_there_are_no_descriptors_leaves_none(door: type, config: dict[str, Any]) -> None:
    made(door, **config)  # what is loaded and opened once, is
    refusals = 0
    for left in count():
        try:
            with nothing_left(), descriptors(left):
                made(door, **config)
        except OSError:
            refusals += 1
        else:
            break
    assert refusals > 2


@pytest.mark.parametrize("door", [Producer, AsyncProducer, Consumer, AsyncConsumer])
def test_a_client_for_which_there_are_no_threads_leaves_nothing(door: type) -> None:
    with pytest.raises(RuntimeError, match="can't start new thread"), nothing_left(), no_threads():
        made(door, **REPORTED)


def test_a_producer_whose_own_thread_cannot_start_leaves_nothing() -> None:
    with pytest.raises(RuntimeError, match="can't start new thread"), nothing_left(), no_threads():
        made(Producer)


def made(door: Callable[..., Any], **config: Any) -> None:
    """A client, made and closed."""
    if door not in (AsyncProducer, AsyncConsumer):
        door(NOBODY, **config).close()
        return

    async def make() -> None:
        await door(NOBODY, **config).close(**({"timeout_s": 0} if door is AsyncProducer else {}))

    _loops[0].run_until_complete(make())


_loops: list[asyncio.AbstractEventLoop] = []
"""The one that all use: it has descriptors of its own."""


@pytest.fixture(autouse=True, scope="module")
def loops() -> Iterator[None]:
    _loops[:] = [asyncio.new_event_loop()]
    yield
    _loops.pop().close()


@contextmanager
def nothing_left() -> Iterator[None]:
    """No descriptors, and no threads that do not end, behind the block, though it raises."""
    gc.collect()
    gc.disable()
    files, threads = open_files(), set(threading.enumerate())
    try:
        yield
    finally:
        left = open_files()
        gc.enable()
        assert left == files
        wait_until(lambda: not set(threading.enumerate()) - threads, 10, "all threads have ended")


def open_files() -> set[str]:
    return {name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}


@contextmanager
def descriptors(left: int) -> Iterator[None]:
    """So many more can be opened in the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = [os.dup(0) for _ in range(left + 1)]
    for descriptor in lowest:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest[-1], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def no_threads() -> Iterator[None]:
    """None can be started in the block: no address space has room for its stack."""
    before = threading.stack_size(1 << 46)
    try:
        yield
    finally:
        threading.stack_size(before)
