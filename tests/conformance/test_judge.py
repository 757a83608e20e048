"""Everything that ``judge`` asks, asked of our brokers, and compared with what Apache Kafka answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from judge.choices import CHOICES
from judge.judgement import judge, known_open
from judge.recorded import load, recorded_sequences
from judge.running import raylog_answers
from judge.steps import Sequence
from kit.kafka_broker import KAFKA_VERSION

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def everything() -> list[Sequence]:
    return list(recorded_sequences())


def test_the_judge_asks_enough(everything: list[Sequence]) -> None:
    requests = {repr((step.api, step.version, step.tree)) for each in everything for step in each.steps}
    assert len(requests) >= 5_000
    assert sum(len(each.steps) >= 20 for each in everything) >= 500


def test_choices_are_told() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    assert [choice for choice in CHOICES if f"| {choice.difference} | {choice.why} |" not in page] == []


@pytest.mark.timeout(600)
def test_answers_are_kafkas(everything: list[Sequence]) -> None:
    version, theirs = load(everything)
    assert version == KAFKA_VERSION
    wanted = [each for each in everything if each.name in theirs]
    found = judge(wanted, raylog_answers(wanted, theirs), theirs)
    listed = known_open()
    new = [f"{kind}: {names[0]}" for kind, names in sorted(found.unexplained.items()) if kind not in listed]
    assert not new, "\n".join(["neither as Kafka's, nor chosen, nor in open.txt:", *new])
    gone = [str(kind) for kind in sorted(listed - set(found.unexplained))]
    assert not gone, "\n".join(["in open.txt, but no difference any more:", *gone])
    if len(wanted) == len(everything):
        assert set(CHOICES) - found.used == set()
