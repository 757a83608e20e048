"""What requests wait for."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future
from typing import Any

from kit.machine import scaled
from raylog.broker.handlers.awaited import News
from raylog.broker.handlers.entities import InFuture


class Waiter:
    def __init__(self) -> None:
        self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1


def test_a_future_wakes_who_waits_for_it() -> None:
    future: Future[Any] = Future()
    awaited, waiter = InFuture(future), Waiter()
    awaited.notify(waiter.wake)
    assert (waiter.wakes, awaited.is_over()) == (0, False)
    future.set_result(1)
    assert (waiter.wakes, awaited.is_over()) == (1, True)
    awaited.notify(waiter.wake)
    assert waiter.wakes == 2, "it has come already"


def test_a_future_that_is_abandoned_holds_nobody() -> None:
    future: Future[Any] = Future()
    awaited, waiter = InFuture(future), Waiter()
    awaited.notify(waiter.wake)
    gone = weakref.ref(waiter)
    awaited.abandon()
    del waiter
    assert gone() is None
    future.set_result(1)


def test_waiting_ends_with_the_news() -> None:
    future: Future[Any] = Future()
    thread = threading.Thread(target=future.set_result, args=(1,))
    awaited = InFuture(future)
    assert not awaited.wait(0)
    thread.start()
    assert awaited.wait(scaled(60))
    thread.join()


def test_news_are_taken_once_and_told_even_if_they_came_before() -> None:
    news, waiter = News(), Waiter()
    news.come()
    news.notify(waiter.wake)
    assert waiter.wakes == 1
    assert news.take()
    assert not news.take()
    news.come()
    assert waiter.wakes == 2
    assert news.take()
