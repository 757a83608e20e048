"""Everything that is asked, and the comparison of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from judge.clients import batches, groups, keys
from judge.clients.java import JavaClient
from judge.clients.question import Answer, Finding, Question

__all__ = ["SEED", "all_questions", "compare", "read_by_java"]

SEED = 1
_FINDINGS: Mapping[str, Callable[[Question, Answer], Iterator[Finding]]] = {
    "keys": keys.key_findings,
    "turns": keys.turn_findings,
    "choices": keys.choice_findings,
    "batch": batches.findings,
    "assign": groups.findings,
}


def all_questions(seed: int = SEED) -> list[Question]:
    """Each with a name of its own."""
    return [*keys.questions(seed), *batches.questions(seed), *groups.questions(seed)]


def compare(questions: Iterable[Question], answers: Mapping[str, Answer]) -> list[Finding]:
    """Every difference between our client's answers and these, which are Java's."""
    return [found for each in questions for found in _FINDINGS[each.ask](each, answers[each.name])]


def read_by_java(questions: Sequence[Question], java: JavaClient) -> list[Finding]:
    """Every difference between what our producer was given and what Java's consumer reads from its batches."""
    asked = [(each, way, read) for each in questions if each.ask == "batch" for way, read in batches.reads(each)]
    return [found for each, way, read in asked for found in batches.read_back(each, way, java.ask(read))]
