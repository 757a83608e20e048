"""Guarded threads: what fails is told and tried again, what ends is seen."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from kit.machine import scaled
from kit.waiting import wait_until
from raylog.coordination.host.loops import FAILING_FOR_S, Loops


class Told:
    """Reports that are kept."""

    def __init__(self) -> None:
        self.failed_: list[tuple[str, str, int]] = []
        self.recovered_: list[tuple[str, int]] = []
        self.gone_: list[tuple[str, str, bool]] = []

    def failed(self, loop: str, error: BaseException, in_a_row: int) -> None:
        self.failed_.append((loop, str(error), in_a_row))

    def recovered(self, loop: str, failures: int) -> None:
        self.recovered_.append((loop, failures))

    def gone(self, loop: str, error: BaseException, vital: bool) -> None:
        self.gone_.append((loop, str(error), vital))


class Full(Told):
    """Reports that cannot be made: the disk under the log is full."""

    def failed(self, loop: str, error: BaseException, in_a_row: int) -> None:
        raise OSError(28, "No space left on device")


def script(*actions: BaseException | bool) -> Callable[[], bool]:
    """A step that does one thing after the other: raises it, or answers it."""
    left = iter(actions)

    def step() -> bool:
        action = next(left)
        if isinstance(action, BaseException):
            raise action
        return action

    return step


def test_step_that_raises_is_told_and_tried_again() -> None:
    told = Told()
    loops = Loops(told)
    mended: list[str] = []
    steps = script(True, OSError("full"), OSError("full"), True, False)
    loop = loops.loop("saver", steps, mend=lambda error: mended.append(str(error)))
    loop.start()
    loop.join(scaled(10))
    assert not loop.is_alive
    assert loops.failures() == {"saver": 2}
    assert told.failed_ == [("saver", "full", 1)]  # the same again is not news
    assert told.recovered_ == [("saver", 2)]
    assert told.gone_ == []
    assert mended == ["full", "full"]
    assert loops.troubles() == {}
    assert loops.failure == ""


def test_mend_that_raises_does_not_end_the_thread() -> None:
    def mend(error: Exception) -> None:
        raise ValueError("worse")

    loops = Loops(told := Told())
    loop = loops.loop("mended", script(OSError("bad"), False), mend=mend)
    loop.start()
    loop.join(scaled(10))
    assert [error for _, error, _ in told.failed_] == ["bad", "worse"]
    assert told.gone_ == []


def test_report_that_raises_does_not_end_the_thread() -> None:
    loops = Loops(told := Full())
    loop = loops.loop("logged", script(OSError("bad"), False))
    loop.start()
    loop.join(scaled(10))
    assert told.recovered_ == [("logged", 1)]
    assert loops.failures() == {"logged": 1}


def test_loop_that_ends_by_no_exception_is_gone_and_seen() -> None:
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()
    finished = threading.Event()
    loops = Loops(told := Told(), on_gone=ends.put)
    loop = loops.loop("exits", script(True, SystemExit(3)), finish=finished.set)
    loop.start()
    assert ends.get(timeout=scaled(10)) == "thread exits has ended by SystemExit: 3"
    assert finished.is_set()
    assert loops.failure == "thread exits has ended by SystemExit: 3"
    assert loops.troubles() == {"exits": loops.failure}
    assert told.gone_ == [("exits", "3", True)]
    assert loops.names() == set()


def test_loop_that_is_not_vital_ends_alone() -> None:
    ends: list[str] = []
    loops = Loops(told := Told(), on_gone=ends.append)
    loop = loops.loop("helper", script(SystemExit()), vital=False)
    loop.start()
    loop.join(scaled(10))
    assert loops.failure == ""
    assert ends == []
    assert "helper" in loops.troubles()
    assert told.gone_ == [("helper", "", False)]


def test_stop_ends_a_pause_and_a_step_that_fails() -> None:
    def step() -> bool:
        raise OSError("for ever")

    loops = Loops(Told())
    loop = loops.loop("failing", step)
    loop.start()
    wait_until(lambda: loops.failures()["failing"] >= 2, 10, "it fails")
    assert loops.troubles() == {"failing": "OSError: for ever"}
    loop.stop()
    loop.join(scaled(10))
    assert not loop.is_alive


def test_trouble_that_is_long_ago_is_none() -> None:
    now = [100.0]
    told = Told()
    loops = Loops(told, now_s=lambda: now[0])

    def fail() -> None:
        raise OSError("bad")

    assert not loops.guarded("part", fail)
    assert loops.troubles() == {"part": "OSError: bad"}
    now[0] += FAILING_FOR_S + 1
    assert loops.troubles() == {}
    assert not loops.guarded("part", fail)
    assert told.failed_ == [("part", "bad", 1)] * 2  # told again after a while
    assert loops.failures() == {"part": 2}
    assert loops.guarded("part", lambda: None)


def test_hook_makes_a_step_fail() -> None:
    hooked = queue.SimpleQueue[str]()

    def hook(name: str) -> None:
        hooked.put(name)
        if hooked.qsize() == 1:
            raise RuntimeError("injected")

    loops = Loops(Told(), before_step=hook)
    loop = loops.loop("hooked", script(False))
    loop.start()
    loop.join(scaled(10))
    assert loops.failures() == {"hooked": 1}


def test_task_that_raises_is_told_and_over() -> None:
    def task() -> None:
        raise OSError("bad")

    loops = Loops(told := Told())
    loops.once("task", task).join(scaled(10))
    assert told.failed_ == [("task", "bad", 1)]
    assert told.gone_ == []
