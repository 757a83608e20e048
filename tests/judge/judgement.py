"""What may differ: what somebody chose (``choices``), and what is not yet as Kafka's (``open.txt``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from judge.asker import Answers
from judge.choices import CHOICES, Choice
from judge.steps import Sequence, Step
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
        for number, of_step in groupby(found, key=lambda each: each.step):
            of_answer = list(of_step)
            by = {each: _chosen(sequence, each) for each in of_answer}
            used |= set().union(*by.values())
            left = [each for each in of_answer if not by[each] and not _follows(each, of_answer)]
            for kind in dict.fromkeys(Kind(each.api, each.path, each.ours, each.kafka) for each in left):
                unexplained.setdefault(kind, []).append(sequence.name)
            if sequence.is_life and (
                any("configs" not in each.path for each in left)
                or any(by[each] and _changes(each, sequence.steps[number]) for each in by)
            ):
                break
    return Judgement(unexplained, used)


def _chosen(sequence: Sequence, found: Difference) -> set[Choice]:
    step = sequence.steps[found.step]
    return {choice for choice in CHOICES if choice.explains(sequence.name, step, found)}


def _follows(found: Difference, of_answer: Iterable[Difference]) -> bool:
    """Whether it hangs on another difference, as in an item, or an answer, whose error code differs."""
    return not _decides(found) and any(
        found.at.startswith(_what_hangs_on(each)) for each in of_answer if _decides(each)
    )


def _decides(found: Difference) -> bool:
    """Whether more of the item, or of the answer, hangs on it."""
    return found.path in ("", "late") or found.path.endswith(("error_code", "group_state", "leader.$"))


def _what_hangs_on(found: Difference) -> str:
    """How the places of those fields begin: a leader is told the members."""
    return "members" if found.path == "leader.$" else found.at.removesuffix("error_code")


def _changes(found: Difference, step: Step) -> bool:
    """Whether the brokers may have done different things, on which all that comes later in a life hangs."""
    if step.tree.get("validate_only"):
        return False
    return (_decides(found) and not found.path.endswith("error_code")) or "none" in (found.ours, found.kafka)


def idle_choices(used: Collection[Choice]) -> list[Choice]:
    """The choices that explain nothing, although they must each time everything is asked."""
    return [each for each in CHOICES if each not in used and not each.chance]


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
