"""A module's logger: a line that cannot be written is left out, and nothing else happens.

Lines are written where something has gone wrong already, in threads that nobody may end: by a stream that does not take
a text, a full disk, a closed file, a value that fails when it is asked what it is. So texts are made safe first, and
what a handler of ``logging`` raises all the same goes no further.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from raylog.protocol.texts import MAX_TRACE, safe_text, told, traced

__all__ = ["Logger", "write"]


class Logger:
    """``log = Logger(__name__)``, then as a logger of ``logging``; ``exc_info`` is an error or None."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, message: str, /, *args: object) -> None:
        """What may be of use to who looks for a fault."""
        write(self._logger, logging.DEBUG, message, args)

    def info(self, message: str, /, *args: object) -> None:
        """What somebody may want to know later."""
        write(self._logger, logging.INFO, message, args)

    def warning(self, message: str, /, *args: object, exc_info: BaseException | None = None) -> None:
        """What is coped with, and should not go on."""
        write(self._logger, logging.WARNING, message, args, exc_info)

    def error(self, message: str, /, *args: object, exc_info: BaseException | None = None) -> None:
        """What somebody has to look at."""
        write(self._logger, logging.ERROR, message, args, exc_info)

    def exception(self, message: str, /, *args: object) -> None:
        """The same, with the traceback of the error that is handled; for use in an ``except`` clause."""
        write(self._logger, logging.ERROR, message, args, sys.exception())


def write(
    logger: logging.Logger,
    level: int,
    message: str,
    args: tuple[object, ...],
    error: BaseException | None = None,
    *,
    extra: Mapping[str, object] | None = None,
    frames: int = 1,
) -> None:
    """One line, with the traceback of ``error``. Never raises. ``frames``: between this call and the code that logs."""
    if not logger.isEnabledFor(level):
        return
    try:
        path, line, function, _ = logger.findCaller(stacklevel=2 + frames)
        info = None if error is None else (type(error), error, error.__traceback__)
        record = logger.makeRecord(logger.name, level, path, line, message, args, info, function, extra)
        _make_safe(record)
        logger.handle(record)
    except Exception:  # noqa: BLE001, S110 (where should it be told?)
        pass


def _make_safe(record: logging.LogRecord) -> None:
    try:
        text = record.getMessage()
    except Exception as failure:  # noqa: BLE001 (an argument's, which is the user's)
        text = f"{record.msg} (its arguments cannot be told: {told(failure)})"
        record.msg, record.args = text, ()
    if (safe := safe_text(text, MAX_TRACE)) != text:
        record.msg, record.args = safe, ()
    if record.exc_info is not None and record.exc_info[1] is not None:
        record.exc_text = traced(record.exc_info[1])
