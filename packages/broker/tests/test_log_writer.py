"""A log that hangs keeps no thread; what does not fit is dropped, and told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from kit.machine import scaled
from kit.waiting import wait_until
from raylog.broker.events import EventLog, line_formatter
from raylog.broker.launch.log_writer import MOST_WAITING, LogWriter
from raylog.coordination.host.loops import Loops

WAIT_S = 20


class Hanging(logging.Handler):
    """Writes nothing until :attr:`free` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(line_formatter("7"))
        self.free = threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert self.free.wait(scaled(WAIT_S))
        self.lines.append(self.format(record))


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    handler = Hanging()
    yield handler
    handler.free.set()


@pytest.fixture
def log(hanging: Hanging) -> Iterator[EventLog]:
    writer = LogWriter([hanging])
    logger = logging.getLogger("of.this.test")
    logger.addHandler(writer)
    logger.propagate = False
    writer.start(Loops())
    yield EventLog("of.this.test")
    logger.removeHandler(writer)
    hanging.free.set()
    writer.flush()


def test_log_that_hangs_keeps_nobody_and_says_all_in_order(log: EventLog, hanging: Hanging) -> None:
    for number in range(100):
        log.warning("something happened", number=number)
    assert hanging.lines == []
    hanging.free.set()
    wait_until(lambda: len(hanging.lines) == 100, WAIT_S, "all is written")
    assert [line.rpartition("=")[2] for line in hanging.lines] == [str(number) for number in range(100)]
    assert all("WARNING broker=7 of.this.test something happened number=" in line for line in hanging.lines)


def test_lines_that_nobody_can_write_are_dropped_and_told(log: EventLog, hanging: Hanging) -> None:
    for number in range(MOST_WAITING + 50):
        log.warning("something happened", number=number)
    hanging.free.set()
    wait_until(lambda: len(hanging.lines) > MOST_WAITING, WAIT_S, "all is written")
    dropped = [line for line in hanging.lines if "log lines dropped" in line]
    assert len(dropped) == 1
    count = int(dropped[0].partition("lines=")[2].split()[0])
    assert len(hanging.lines) - 1 + count == MOST_WAITING + 50


def test_traceback_is_written_with_its_line(log: EventLog, hanging: Hanging) -> None:
    hanging.free.set()
    try:
        raise ValueError("a defect")
    except ValueError:
        log.exception("it failed", partition="t-0")
    wait_until(lambda: hanging.lines, WAIT_S, "it is written")
    first, *traceback = hanging.lines[0].splitlines()
    assert "ERROR broker=7 of.this.test it failed partition=t-0" in first
    assert traceback[-1] == "ValueError: a defect"


def test_flush_waits_until_all_is_written_and_not_for_ever(hanging: Hanging) -> None:
    writer = LogWriter([hanging])
    writer.handle(logging.LogRecord("n", logging.INFO, "", 0, "a line", (), None))
    writer.flush()
    assert hanging.lines == []
    writer.start(Loops())
    hanging.free.set()
    writer.flush()
    assert len(hanging.lines) == 1
