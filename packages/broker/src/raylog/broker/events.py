"""The broker's log: one line per event, what happened first and then ``name=value`` fields.

    2026-03-01 12:00:00,123 WARNING broker=1 raylog.broker.storage.directories.recovery log truncated
    partition=flights-3 offset=42

Fields have the same name wherever they occur: ``partition`` (topic and number, as in a directory's name), ``offset``,
``leader_epoch``, ``controller_epoch``, ``broker_epoch``, ``listener``, ``client`` (an address), ``client_id``,
``path``, ``reason`` (an error or a cause, in words). A value that has spaces, quotes or line ends is a JSON string,
so that a line is one event whatever a client put into it. ``record.event`` and ``record.fields`` hold the parts for
handlers that want them.
"""

from __future__ import annotations

import json
import logging
import re
import sys

from raylog.protocol.logs import write
from raylog.protocol.texts import says, told

__all__ = ["EventLog", "LoopEvents", "line_formatter"]

_PLAIN = re.compile(r"[^\s\"'=\\]+")


class EventLog:
    """A module's logger: ``log = EventLog(__name__)``, then ``log.info("segment deleted", partition=tp, offset=7)``."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def info(self, event: str, /, **fields: object) -> None:
        """What an operator may want to know later."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """What the broker copes with, and what should not go on."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        """What somebody has to look at."""
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, /, **fields: object) -> None:
        """An exception that nobody expected, with its traceback; for use in an ``except`` clause."""
        self._log(logging.ERROR, event, fields, sys.exception())

    def _log(self, level: int, event: str, fields: dict[str, object], error: BaseException | None = None) -> None:
        if self._logger.isEnabledFor(level):
            line = " ".join((event, *(f"{name}={_text(value)}" for name, value in fields.items())))
            write(self._logger, level, line, (), error, extra={"event": event, "fields": fields}, frames=2)


class LoopEvents:
    """Tells what becomes of the broker's threads (LoopReports of ``coordination.loops``)."""

    _events = EventLog(__name__)

    def failed(self, loop: str, error: BaseException, in_a_row: int) -> None:
        """It is tried again."""
        self._events.exception("thread failed, trying again", loop=loop, failures=in_a_row, reason=told(error))

    def recovered(self, loop: str, failures: int) -> None:
        """It works again."""
        self._events.info("thread works again", loop=loop, failures=failures)

    def gone(self, loop: str, error: BaseException, vital: bool) -> None:
        """It has ended."""
        consequence = "the broker must not serve without it" if vital else "the broker serves without it"
        self._events.exception("thread has ended", loop=loop, consequence=consequence, reason=told(error))


def line_formatter(broker: str) -> logging.Formatter:
    """Lines as above, those of other libraries too, for the process that is broker number ``broker``."""
    return logging.Formatter(
        "%(asctime)s %(levelname)s broker=%(broker)s %(name)s %(message)s", defaults={"broker": broker}
    )


def _text(value: object) -> str:
    text = says(value)
    return text if _PLAIN.fullmatch(text) and text.isprintable() else json.dumps(text, ensure_ascii=False)
