"""Kafka's answers, kept: so that ours are compared with them where there is no Java.

``make judge-record`` writes the file anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from judge import kept
from judge.asker import Answers
from judge.cases import edge_cases
from judge.group_cases import group_cases
from judge.late_cases import late_cases
from judge.lives import lives
from judge.several_cases import several_cases
from judge.steps import Sequence

__all__ = ["SEEDS", "load", "recorded_sequences", "save"]

DATA = Path(__file__).with_name("kafka.jsonl.xz")
SEEDS = (1, 2, 3)
LIVES = 35


def recorded_sequences() -> Iterator[Sequence]:
    """Everything that is asked: the edges, joins on purpose, several things at once, what a clock decides, and of each
    kind of life LIVES under each seed."""
    yield from edge_cases()
    yield from group_cases()
    yield from several_cases()
    yield from late_cases()
    for seed in SEEDS:
        yield from lives(seed, LIVES)


def load(wanted: Iterable[Sequence]) -> tuple[str, dict[str, Answers]]:
    """Kafka's version, and its answers by the name of each sequence of ``wanted``. Raises ValueError where Kafka was
    not asked so."""
    version, all_kept = kept.read(DATA)
    asked = {each.name: kept.digest(each.steps) for each in wanted}
    return version, kept.current(all_kept, asked, "sequences", "make judge-record")


def save(version: str, everything: Collection[Sequence], answers: Mapping[str, Answers]) -> None:
    """Keep these answers, and those to the others of ``everything`` that were kept before."""
    whole = kept.read(DATA)[1] if DATA.exists() else {}
    whole |= {each.name: (kept.digest(each.steps), answers[each.name]) for each in everything if each.name in answers}
    kept.write(DATA, version, {each.name: whole[each.name] for each in everything if each.name in whole})
