"""The answers of Java's client, kept: so that ours are compared with them where there is no Java."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from judge import kept
from judge.clients.question import Answer, Question

__all__ = ["load", "save"]

DATA = Path(__file__).with_name("java.jsonl.xz")


def load(questions: Iterable[Question]) -> tuple[str, dict[str, Answer]]:
    """Kafka's version, and the answers by the questions' names. Raises ValueError where Java was not asked so, or what
    was asked then is not any more."""
    version, all_kept = kept.read(DATA)
    asked = dict.fromkeys(all_kept, "") | {question.name: kept.digest(question) for question in questions}
    return version, kept.current(all_kept, asked, "questions", "make judge-clients-record")


def save(version: str, questions: Iterable[Question], answers: Mapping[str, Answer]) -> None:
    """Keep these answers in place of all that were kept."""
    kept.write(DATA, version, {each.name: (kept.digest(each), answers[each.name]) for each in questions})
