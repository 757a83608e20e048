"""What differs between two brokers' answers, and the shortest sequence that shows it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from judge.asker import Answers
from judge.steps import Sequence
from judge.told import identity
from raylog.broker.handlers import TABLE

__all__ = ["Difference", "differences", "shortest"]

NAMES = {row.key: row.name for row in TABLE}
GIVEN = re.compile(r"(session id|producer id|member id) \w+\.\d+")
"""What a broker gave to a client, without the client."""
LONGEST = 60
FETCH = 1
ABSENT = object()


class Difference(NamedTuple):
    """``path`` leads into the answer to the step: fields by name, settings and APIs as ``configs[name]``, items of
    other arrays as ``[]``, their number as ``#``; empty: the whole answer. ``ours`` and ``kafka`` are told short.
    ``at`` is the path with items by what Kafka's say that they are."""

    step: int
    api: str
    path: str
    ours: str
    kafka: str
    at: str


def differences(sequence: Sequence, ours: Answers, kafka: Answers) -> Iterator[Difference]:
    """Each field that differs, of each item."""
    for index, (step, *both) in enumerate(zip(sequence.steps, ours, kafka, strict=True)):
        one, other = (_one_topic_each(each) if step.api == FETCH else each for each in both)
        for path, at, mine, theirs in _between(one, other, "", ""):
            yield Difference(index, NAMES[step.api], path, _short(mine), _short(theirs), at)


def _one_topic_each(answer: Any) -> Any:
    """An answer to a Fetch that names a topic once: in a session Kafka names it again where others come between."""
    if not isinstance(answer, dict):
        return answer
    topics: dict[str, Any] = {}
    for topic in answer["responses"]:
        rest = {**topic, "partitions": []}
        topics.setdefault(json.dumps(rest, sort_keys=True), rest)["partitions"] += topic["partitions"]
    for topic in topics.values():
        topic["partitions"].sort(key=lambda each: each["partition_index"])
    return {**answer, "responses": list(topics.values())}


def _between(ours: Any, kafka: Any, path: str, at: str) -> Iterator[tuple[str, str, Any, Any]]:
    match ours, kafka:
        case dict(), dict():
            for name in {**ours, **kafka}:
                step = f".{name}" if path else name
                yield from _between(ours.get(name, ABSENT), kafka.get(name, ABSENT), path + step, at + step)
        case ["late", one], ["late", other]:
            yield from _between(one, other, path, at)
        case ["late", one], dict():
            yield "late", "late", True, False
            yield from _between(one, kafka, path, at)
        case dict(), ["late", other]:
            yield "late", "late", False, True
            yield from _between(ours, other, path, at)
        case list(), list() if path.endswith(("configs", "api_keys")) and ours != kafka:
            mine, theirs = ({_name(each): each for each in items} for items in (ours, kafka))
            for name in {**mine, **theirs}:
                step = f"[{name}]"
                yield from _between(mine.get(name, ABSENT), theirs.get(name, ABSENT), path + step, at + step)
        case list(), list():
            yield from _between_lists(ours, kafka, path, at)
        case _:
            if ours != kafka:
                yield path, at, ours, kafka


def _between_lists(ours: list[Any], kafka: list[Any], path: str, at: str) -> Iterator[tuple[str, str, Any, Any]]:
    """Item by item where they are as many, else those that both have."""
    theirs = _by_identity(kafka)
    if len(ours) == len(kafka):
        pairs = list(zip(theirs, ours, kafka, strict=True))
    else:
        yield f"{path}#", f"{at}#", *(("fewer", "more") if len(ours) < len(kafka) else ("more", "fewer"))
        mine = _by_identity(ours)
        pairs = [(key, mine[key], theirs[key]) for key in theirs if key in mine and identity(theirs[key])]
    for key, one, other in pairs:
        yield from _between(one, other, f"{path}[]", f"{at}[{key}]")


def _by_identity(items: list[Any]) -> dict[str, Any]:
    """Each by what it says that it is, and the how-many-eth of that."""
    counts: Counter[str] = Counter()
    found = {}
    for item in items:
        key = json.dumps(identity(item), sort_keys=True)
        found[f"{key} {counts[key]}"] = item
        counts[key] += 1
    return found


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
