"""Subscriptions by pattern: which topics a regular expression stands for.

A group's pattern lies in ZooKeeper, and processes of other users match it: the elected member, and a broker that
describes the group. So whoever writes it must not be able to hold them up. RE2 matches in time linear in the name, and
with bounded memory (KIP-848 uses it in the broker for the same reason). It has neither back-references nor look-around.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

import re2

from raylog.protocol.errors import InvalidConfig

__all__ = ["matching_topics", "pattern_text"]

Name = TypeVar("Name", bound=str)

MEMORY_BYTES = 1 << 20
"""For one compiled pattern: some 10,000 characters. A name of a topic then takes a few ms at the very worst."""
SHOWN_CHARACTERS = 80
_OMITTED_MINIMUM = re.compile(r"\{,\d*\}")
_UNDERSTOOD = re.IGNORECASE | re.UNICODE | re.ASCII | re.MULTILINE | re.DOTALL
"""Flags that RE2 is told of, or that change nothing for names of topics: they are ASCII, and of one line."""


def matching_topics(pattern: str, topics: Iterable[Name]) -> list[Name]:
    """Those of ``topics`` whose whole names match ``pattern``. Raises InvalidConfig when RE2 does not understand it."""
    compiled = _compiled(pattern)
    return [topic for topic in topics if compiled.fullmatch(topic)]


def pattern_text(pattern: re.Pattern[str]) -> str:
    """The pattern as a group stores it. Raises InvalidConfig when it would not match as the user means it."""
    if not isinstance(pattern.pattern, str):
        raise InvalidConfig(f"topics: the pattern {pattern.pattern!r} is of bytes; names of topics are text")
    if pattern.flags & ~_UNDERSTOOD:
        raise InvalidConfig(
            f"topics: {_shown(pattern.pattern)} has flags that RE2 has not: write it without re.VERBOSE"
        )
    text = f"(?i:{pattern.pattern})" if pattern.flags & re.IGNORECASE else pattern.pattern
    if _OMITTED_MINIMUM.search(text):  # characters for RE2, not a number
        raise InvalidConfig(f"topics: {_shown(text)} repeats without a minimum, which RE2 has not: write {{0,n}}")
    _compiled(text)
    return text


def _compiled(pattern: str) -> re2._Regexp:
    options = re2.Options()
    options.max_mem = MEMORY_BYTES
    options.never_capture = True
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        [reason, *_] = error.args
        why = reason.decode(errors="replace") if isinstance(reason, bytes) else "it has half a character"
        raise InvalidConfig(
            f"the pattern {_shown(pattern)} is no regular expression of RE2, which has neither look-around nor "
            f"back-references: {why[:SHOWN_CHARACTERS]}"
        ) from None


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= SHOWN_CHARACTERS else f"{pattern[:SHOWN_CHARACTERS]}...")
