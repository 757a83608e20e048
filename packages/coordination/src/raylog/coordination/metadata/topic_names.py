"""Which names a topic may have: Kafka's rules, because names are directory names and parts of metrics."""

from __future__ import annotations

import re

from raylog.protocol.errors import InvalidTopic

MAX_LENGTH = 249
"""A directory's name has 255 characters at most, and the partition and a hyphen are in it, too."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def is_topic_name(name: str) -> bool:
    """Whether a topic may be called so."""
    return len(name) <= MAX_LENGTH and name not in (".", "..") and _LEGAL.fullmatch(name) is not None


def check_topic_name(name: str) -> None:
    """Raises InvalidTopic, saying what is wrong with ``name``."""
    if not isinstance(name, str):
        raise InvalidTopic(f"a topic's name must be a str, not a {type(name).__name__}")
    if not name:
        raise InvalidTopic("a topic's name must not be empty")
    if name in (".", ".."):
        raise InvalidTopic(f"a topic cannot be called {name!r}: that is a directory")
    if len(name) > MAX_LENGTH:
        raise InvalidTopic(f"the topic name {name[:20]!r}… has {len(name)} characters; {MAX_LENGTH} are allowed")
    if not _LEGAL.fullmatch(name):
        raise InvalidTopic(f"topic name {name!r}: only letters, digits, '.', '_' and '-' are allowed")
