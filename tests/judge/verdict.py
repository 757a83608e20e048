"""What differs between two brokers' answers, and the shortest sequence that shows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from judge.asker import Answers
from judge.steps import Sequence
from raylog.broker.handlers import TABLE

__all__ = ["Difference", "differences", "shortest"]

NAMES = {row.key: row.name for row in TABLE}
GIVEN = re.compile(r"(session id|producer id|member id) \w+\.\d+")
"""What a broker gave to a client, without the client."""
LONGEST = 60
ABSENT = object()


class Difference(NamedTuple):
    """``path`` leads into the answer to the step: fields by name, settings and APIs as ``configs[name]``, items of
    other arrays as ``[]``, their number as ``#``; empty: the whole answer. ``ours`` and ``kafka`` are told short."""

    step: int
    api: str
    path: str
    ours: str
    kafka: str


def differences(sequence: Sequence, ours: Answers, kafka: Answers) -> Iterator[Difference]:
    """Each field that differs, once for all items of an array."""
    for index, (step, one, other) in enumerate(zip(sequence.steps, ours, kafka, strict=True)):
        found = [
            Difference(index, NAMES[step.api], path, _short(ours), _short(kafka))
            for path, ours, kafka in _between(one, other, "")
        ]
        yield from dict.fromkeys(found)


def _between(ours: Any, kafka: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    match ours, kafka:
        case dict(), dict():
            for name in {**ours, **kafka}:
                yield from _between(ours.get(name, ABSENT), kafka.get(name, ABSENT), f"{path}.{name}" if path else name)
        case ["late", one], ["late", other]:
            yield from _between(one, other, path)
        case ["late", one], dict():
            yield "late", True, False
            yield from _between(one, kafka, path)
        case dict(), ["late", other]:
            yield "late", False, True
            yield from _between(ours, other, path)
        case list(), list() if path.endswith(("configs", "api_keys")) and ours != kafka:
            one, other = ({_name(each): each for each in items} for items in (ours, kafka))
            for name in {**one, **other}:
                yield from _between(one.get(name, ABSENT), other.get(name, ABSENT), f"{path}[{name}]")
        case list(), list() if len(ours) == len(kafka):
            for one, other in zip(ours, kafka, strict=True):
                yield from _between(one, other, f"{path}[]")
        case list(), list():
            yield f"{path}#", *(("fewer", "more") if len(ours) < len(kafka) else ("more", "fewer"))
        case _:
            if ours != kafka:
                yield path, ours, kafka


def _name(item: Any) -> str:
    return str(NAMES.get(item["api_key"], item["api_key"]) if "api_key" in item else item["name"])


def _short(value: Any) -> str:
    match value:
        case dict():
            return GIVEN.sub(r"\1", str(value.get("$", "an answer")))
        case list():
            return "a list" if value else "an empty list"
        case _ if value is ABSENT:
            return "–"
    text = GIVEN.sub(r"\1", str(value))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def shortest(sequence: Sequence, differs: Callable[[Sequence], bool]) -> Sequence:
    """Leave steps out as long as it still differs: half of them, a quarter, … one by one."""
    size = max(1, len(sequence.steps) // 2)
    while True:
        at = 0
        while at < len(sequence.steps):
            shorter = sequence._replace(steps=sequence.steps[:at] + sequence.steps[at + size :])
            if shorter.steps and differs(shorter):
                sequence = shorter
            else:
                at += size
        if size == 1:
            return sequence
        size //= 2
