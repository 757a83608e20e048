"""What a test's processes wrote into their logs while it ran: a test that fails tells it (``conftest.py``).

Whoever starts processes that write logs calls :func:`watch`, and :func:`forget` when they have ended. The logs of
brokers in the tests' own process are pytest's captured ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

LINES = 60
"""Of each log, the last ones."""
_MOST_BYTES = 64 * 1024

_watched: set[tuple[Path, str]] = set()
_over: set[Path] = set()
_before: dict[Path, int] = {}
"""The sizes that logs had when the test began."""


def watch(directory: Path, *patterns: str) -> None:
    """Logs are, or will be, the files in ``directory`` that have these patterns."""
    _watched.update((directory, pattern) for pattern in patterns)
    _over.discard(directory)


def forget(directory: Path) -> None:
    """Nothing writes there any more: from the next test on it is not looked at."""
    _over.add(directory)


def begin_test() -> None:
    """What stands in the logs by now is of earlier tests."""
    _watched.difference_update([watched for watched in _watched if watched[0] in _over])
    _over.clear()
    _before.clear()
    _before.update((log, log.stat().st_size) for log in _logs())


def written() -> Iterator[tuple[Path, list[str]]]:
    """Each log into which something was written since the test began, and the last lines of that."""
    for log in _logs():
        if lines := _last_lines(log, _before.get(log, 0)):
            yield log, lines


def _logs() -> Iterator[Path]:
    for directory, pattern in sorted(_watched):
        yield from (path for path in sorted(directory.glob(pattern)) if path.is_file())


def _last_lines(log: Path, begin: int) -> list[str]:
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        if end < begin:  # begun anew meanwhile
            begin = 0
        file.seek(max(begin, end - _MOST_BYTES))
        return last(file.read().decode(errors="replace").splitlines())


def last(lines: list[str]) -> list[str]:
    """The last of them, after a line that says how many are left out."""
    return lines if len(lines) <= LINES else [f"… {len(lines) - LINES} lines before", *lines[-LINES:]]


def command(test: str, seed: int | None) -> str:
    """What repeats a test alone."""
    return f".venv/bin/pytest {f'--randomly-seed={seed}' if seed is not None else '-p no:randomly'} '{test}'"
