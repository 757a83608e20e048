"""What may differ: what somebody chose (``choices``), and what is not yet as Kafka's (``open.txt``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from judge.asker import Answers
from judge.choices import CHOICES, Choice
from judge.steps import Sequence
from judge.verdict import Difference, differences

__all__ = ["Judgement", "Kind", "idle_choices", "judge", "known_open", "reopen"]

OPEN = Path(__file__).with_name("open.txt")
HEADER = (
    "# Differences that are to go: API | field | ours | Kafka's | where, for one. `make judge-open` writes it anew.\n"
)


class Kind(NamedTuple):
    """Differences that are one: of an API, in a field, of the same values."""

    api: str
    path: str
    ours: str
    kafka: str

    def __str__(self) -> str:
        return " | ".join(self)


class Judgement(NamedTuple):
    """``unexplained``: what nobody chose, and the names of the sequences; ``used``: the choices that explain
    something."""

    unexplained: dict[Kind, list[str]]
    used: set[Choice]


def judge(wanted: Iterable[Sequence], ours: Mapping[str, Answers], kafka: Mapping[str, Answers]) -> Judgement:
    """Compare the answers to all sequences."""
    unexplained: dict[Kind, list[str]] = {}
    used: set[Choice] = set()
    for sequence in wanted:
        found = differences(sequence, ours[sequence.name], kafka[sequence.name])
        for _, of_step in groupby(found, key=lambda each: each.step):
            of_answer = list(of_step)
            by = {each: {choice for choice in CHOICES if choice.explains(sequence.name, each)} for each in of_answer}
            used |= set().union(*by.values())
            decided = [each.path.removesuffix("error_code") for each in of_answer if _decides(each)]
            for each in of_answer:
                follows = not _decides(each) and any(each.path.startswith(prefix) for prefix in decided)
                if not by[each] and not follows:
                    unexplained.setdefault(Kind(*each[1:]), []).append(sequence.name)
            if sequence.is_life and any(
                _decides(each) or (not by[each] and "configs" not in each.path) for each in of_answer
            ):
                break
    return Judgement(unexplained, used)


def _decides(found: Difference) -> bool:
    """Whether the rest of the answer hangs on it, and in a life all that comes later."""
    return found.path in ("", "late") or found.path.endswith(("error_code", "group_state"))


def idle_choices(used: Collection[Choice], unrecorded: Iterable[str]) -> list[Choice]:
    """The choices that explain nothing in all that is recorded, and nothing in the ``unrecorded`` sequences either."""
    names = list(unrecorded)
    return [each for each in CHOICES if each not in used and not any(each.covers(name) for name in names)]


def known_open() -> set[Kind]:
    """The differences that are to go."""
    return {_kind(line) for line in _lines()}


def reopen(found: Mapping[Kind, list[str]], *, gone: Collection[Kind]) -> None:
    """Add what was found to the list, and take out what is gone."""
    lines = {kind: line for line in _lines() if (kind := _kind(line)) not in gone}
    lines |= {kind: f"{kind} | {names[0]}" for kind, names in found.items() if kind not in lines}
    OPEN.write_text(HEADER + "".join(f"{line}\n" for _, line in sorted(lines.items())))


def _lines() -> list[str]:
    return [line for line in OPEN.read_text().splitlines() if not line.startswith("#")]


def _kind(line: str) -> Kind:
    return Kind(*line.split(" | ")[:4])
