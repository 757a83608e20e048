"""What differs between two brokers' answers, and the shortest sequence that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from judge.steps import Sequence

__all__ = ["Difference", "differences", "shortest"]

Answers = list[Any]


class Difference(NamedTuple):
    """``path`` leads into the answer to the step: fields by name, items of arrays as ``[]``."""

    step: int
    path: str
    ours: Any
    kafka: Any


def differences(ours: Answers, kafka: Answers) -> Iterator[Difference]:
    """Each field that differs, once for all items of an array."""
    for step, (one, other) in enumerate(zip(ours, kafka, strict=True)):
        found = [Difference(step, *each) for each in _between(one, other, "")]
        yield from {repr(each): each for each in found}.values()


def _between(ours: Any, kafka: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    match ours, kafka:
        case dict(), dict():
            for name in {**ours, **kafka}:
                yield from _between(ours.get(name), kafka.get(name), f"{path}.{name}" if path else name)
        case list(), list() if len(ours) == len(kafka):
            for one, other in zip(ours, kafka, strict=True):
                yield from _between(one, other, f"{path}[]")
        case list(), list():
            yield f"{path}#", len(ours), len(kafka)
        case _:
            if ours != kafka:
                yield path, ours, kafka


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
