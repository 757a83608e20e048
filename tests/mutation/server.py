"""A pytest plugin that collects the tests once, then forks for each mutant and runs the tests that may notice it.

Before the fork all modules are imported without a fault. The child gives the function that has the fault its new
code, and runs the mutant's tests in the given order until one fails. What is executed while modules are imported
(constants, defaults, whatever an import calls) needs a new interpreter instead: `Once`.

Reads one JSON object per mutant from stdin, answers with one per mutant on the descriptor `MUTATION_ANSWERS`.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

KILLED, SURVIVED, TIMEOUT, UNFIT = "killed", "survived", "timeout", "unfit"
"""How a mutant ends; unfit: its function cannot be replaced, a new interpreter is needed."""

WAIT = 4
"""How much longer than its processor time a test may take, on a busy machine or waiting."""


class TooLong(BaseException):
    """A test takes many times the processor time that it takes without a mutant."""


def stop(*_: Any) -> None:
    raise TooLong


class Watch:
    """Says how the run ends: at the first test that fails, or when all have passed."""

    def __init__(self, answer: Callable[[str, str], None]) -> None:
        self._answer = answer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:  # nothing is torn down: the process ends here
            text = str(report.longrepr)
            stopped = TooLong.__name__ in text or ("Timeout (" in text and "pytest-timeout" in text)
            self._answer(TIMEOUT if stopped else KILLED, report.nodeid)


def run_items(items: list[pytest.Item], limits: dict[str, float]) -> None:
    """Limits are in seconds of processor time. Against tests that wait for ever a limit of time is set, too."""

    signal.signal(signal.SIGPROF, stop)
    for item, following in zip(items, [*items[1:], None], strict=True):
        limit = limits[item.nodeid]
        item.add_marker(pytest.mark.timeout(WAIT * limit, method="signal"), append=False)
        signal.setitimer(signal.ITIMER_PROF, limit, 1.0)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    signal.setitimer(signal.ITIMER_PROF, 0)


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def replace_function(path: str, function: str, text: str) -> bool:
    """Give each function object of this name and file the code that the text has for it."""
    new = [code for code in codes(compile(text, path, "exec")) if code.co_qualname == function]
    old = [
        found
        for found in gc.get_objects()
        if isinstance(found, FunctionType)
        and found.__code__.co_filename == path
        and found.__code__.co_qualname == function
    ]
    starts = {code.co_firstlineno: code for code in new}
    if not old or any(found.__code__.co_firstlineno not in starts for found in old):
        return False
    for found in old:
        code = starts[found.__code__.co_firstlineno]
        if code.co_freevars != found.__code__.co_freevars:
            return False
        found.__code__ = code
    return True


def end(answers: int, outcome: str, test: str) -> None:
    os.write(answers, json.dumps({"outcome": outcome, "test": test}).encode())
    os._exit(0)


class Server:
    def __init__(self, answers: int) -> None:
        self._answers = answers

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        assert threading.active_count() == 1, "a fork would lose threads that an import started"
        items = {item.nodeid: item for item in session.items}
        self._say({"ready": len(items)})
        gc.collect()
        gc.freeze()
        for line in sys.stdin:
            self._say(self._one(json.loads(line), items, session.config))
        return True

    def _one(self, asked: dict[str, Any], items: dict[str, pytest.Item], config: pytest.Config) -> dict[str, Any]:
        began = time.monotonic()
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(read)
                self._child(asked, items, config, write)
            finally:
                os._exit(3)
        os.close(write)
        timer = threading.Timer(asked["hard_limit_s"], os.killpg, (pid, signal.SIGKILL))
        timer.start()
        with os.fdopen(read, "rb") as pipe:
            said = pipe.read()
        os.waitpid(pid, 0)
        timer.cancel()
        timer.join()
        try:
            os.killpg(pid, signal.SIGKILL)  # what the tests started
        except ProcessLookupError:
            pass
        lost = {
            "outcome": TIMEOUT if time.monotonic() - began >= asked["hard_limit_s"] else KILLED,
            "test": "(the process ended)",
        }
        return {
            **(json.loads(said) if said else lost),
            "key": asked["key"],
            "seconds": round(time.monotonic() - began, 2),
        }

    def _child(self, asked: dict[str, Any], items: dict[str, pytest.Item], config: pytest.Config, write: int) -> None:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        gc.unfreeze()
        answer = partial(end, write)
        code = asked["code"]  # none: nothing is changed
        if code and not replace_function(str(config.rootpath / asked["path"]), asked["function"], code):
            answer(UNFIT, "")
        config.pluginmanager.register(Watch(answer))
        run_items([items[test] for test in asked["tests"] if test in items], asked["limits"])
        answer(SURVIVED, "")

    def _say(self, answer: dict[str, Any]) -> None:
        os.write(self._answers, (json.dumps(answer) + "\n").encode())


class Once:
    """For a new interpreter: the given tests in their order, and one answer."""

    def __init__(self, answers: int, asked: dict[str, Any]) -> None:
        self._answers = answers
        self._asked = asked

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        answer = partial(end, self._answers)
        items = {item.nodeid: item for item in session.items}
        if session.testsfailed or any(test not in items for test in self._asked["tests"]):
            answer(KILLED, "(collection)")
        session.config.pluginmanager.register(Watch(answer))
        run_items([items[test] for test in self._asked["tests"]], self._asked["limits"])
        answer(SURVIVED, "")
        return True


def pytest_configure(config: pytest.Config) -> None:
    answers = int(os.environ["MUTATION_ANSWERS"])
    asked = os.environ.get("MUTATION_ASKED")
    plugin = Once(answers, json.loads(Path(asked).read_text())) if asked else Server(answers)
    config.pluginmanager.register(plugin, "mutation-server")
