"""An interrupt during a start is heard, also where a library swallows it."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from raylog.spark.sessions.interrupts import interrupts_heeded


def interrupted(reached: list[str], *, swallowed: bool) -> None:
    with interrupts_heeded():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            if not swallowed:
                raise
        reached.append("end")


@pytest.mark.parametrize(("swallowed", "reached"), [(True, ["end"]), (False, [])])
def test_an_interrupt_is_raised_though_somebody_swallows_it(swallowed: bool, reached: list[str]) -> None:
    before, found = signal.getsignal(signal.SIGINT), list[str]()
    with pytest.raises(KeyboardInterrupt):
        interrupted(found, swallowed=swallowed)
    assert found == reached
    assert signal.getsignal(signal.SIGINT) is before


def test_who_took_the_signal_over_keeps_it() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with interrupts_heeded():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_changes_nothing() -> None:
    def start() -> object:
        with interrupts_heeded():
            return signal.getsignal(signal.SIGINT), threading.current_thread() is threading.main_thread()

    with ThreadPoolExecutor(1) as other:
        assert other.submit(start).result() == (signal.getsignal(signal.SIGINT), False)
