"""What Java's client is asked, and what comes of it."""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

__all__ = ["Answer", "Choice", "Finding", "Question", "decoded", "encoded"]

Answer = Any
"""A plain tree, as JSON has it."""


class Question(NamedTuple):
    """Inputs for ``conformance/java/ClientAnswers.java``; ``ask`` says what it is to do with them."""

    name: str
    ask: str
    inputs: dict[str, Any]


class Choice(NamedTuple):
    """A difference that is meant to be, and why: a line of docs/compatibility.md."""

    difference: str
    why: str


class Finding(NamedTuple):
    """One difference between our client's answer and Java's."""

    question: str
    what: str
    choice: Choice | None = None
    """None: it is a fault."""


def encoded(data: bytes | None) -> str | None:
    """Bytes as Java's program takes them."""
    return None if data is None else base64.b64encode(data).decode()


def decoded(text: str | None) -> bytes | None:
    """The inverse of :func:`encoded`."""
    return None if text is None else base64.b64decode(text)
