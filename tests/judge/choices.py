"""Where raylog answers otherwise than Kafka on purpose. docs/compatibility.md tells it. Nothing else may differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from judge.verdict import Difference

__all__ = ["CHOICES", "Choice", "chosen", "unexplained"]


class Choice(NamedTuple):
    """``where``: names of sequences, and ``path``: what differs in an answer, both with ``*``."""

    difference: str
    why: str
    where: str = "*"
    path: str = "*"

    def explains(self, name: str, found: Difference) -> bool:
        return fnmatchcase(name, self.where) and fnmatchcase(found.path, self.path)


CHOICES: tuple[Choice, ...] = (
    Choice(
        "A text that is no UTF-8 ends the connection; Kafka puts � in its place.",
        "A name that nobody can send again is of no use.",
        "*not-utf8",
    ),
    Choice(
        "ApiVersions tells the APIs and features that there are.",
        "Kafka's are those of KRaft, too.",
        "ApiVersions*",
    ),
)


def chosen(name: str, found: Iterable[Difference]) -> set[Choice]:
    """Those that explain something."""
    return {choice for each in found for choice in CHOICES if choice.explains(name, each)}


def unexplained(name: str, found: Iterable[Difference]) -> Sequence[Difference]:
    return [each for each in found if not any(choice.explains(name, each) for choice in CHOICES)]
