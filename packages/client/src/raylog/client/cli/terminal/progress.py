"""A line on the terminal that tells how far a command is. Where stderr is no terminal there is none."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_EVERY_S = 0.1
_WIDTH = 30
_CLEAR = "\r\x1b[K"


class StatusLine:
    """One line that is written anew again and again, on a terminal; elsewhere nothing. ``quiet``: there, too."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.is_shown = self._stream.isatty() and not quiet

    def show(self, text: str) -> None:
        """Put ``text`` in the place of what was there."""
        if self.is_shown:
            self._stream.write(_CLEAR + text)
            self._stream.flush()

    def end(self) -> None:
        """Take the line away."""
        self.show("")


class Progress:
    """Counts records and bytes; ``total`` is how many records, or bytes, there will be, if that is known.

    ``quiet``: show nothing on a terminal either, as when somebody types there.
    """

    def __init__(self, total: int | None, *, of_bytes: bool, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._status = StatusLine(quiet=quiet, stream=stream)
        self._total = total
        self._of_bytes = of_bytes
        self._records = self._bytes = 0
        self._begun = self._shown = time.monotonic()

    def add(self, records: int, size: int) -> None:
        """So many more."""
        if not self._status.is_shown:
            return
        self._records += records
        self._bytes += size
        now = time.monotonic()
        if now - self._shown >= _EVERY_S:
            self._shown = now
            self._status.show(self._line(now))

    def end(self) -> None:
        """Take the line away."""
        self._status.end()

    def _line(self, now: float) -> str:
        rate = self._records / max(now - self._begun, 1e-9)
        counts = f"{self._records:,} records  {self._bytes / 1e6:,.1f} MB  {rate:,.0f} records/s"
        if not self._total:
            return counts
        part = min((self._bytes if self._of_bytes else self._records) / self._total, 1.0)
        return f"[{'#' * int(part * _WIDTH):.<{_WIDTH}}] {part:4.0%}  {counts}"
