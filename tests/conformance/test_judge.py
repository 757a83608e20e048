"""Everything that ``judge`` asks, asked of our brokers, and compared with what Apache Kafka answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from judge.asker import Answers
from judge.choices import CHOICES
from judge.judgement import idle_choices, judge, known_open
from judge.recorded import is_unrecorded, load, recorded_sequences
from judge.running import raylog_answers
from judge.steps import Sequence
from kit.kafka_broker import KAFKA_VERSION

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def everything() -> list[Sequence]:
    return list(recorded_sequences())


@pytest.fixture(scope="module")
def kafkas(everything: list[Sequence]) -> tuple[str, dict[str, Answers]]:
    return load(everything)


@pytest.fixture(scope="module")
def judged(everything: list[Sequence], kafkas: tuple[str, dict[str, Answers]]) -> list[Sequence]:
    return [each for each in everything if each.name in kafkas[1]]


def test_all_but_the_listed_is_recorded(everything: list[Sequence], judged: list[Sequence]) -> None:
    missing = {each.name for each in everything} - {each.name for each in judged}
    assert missing == {each.name for each in everything if is_unrecorded(each.name)}
    assert len(missing) == 105 + 88


def test_the_judge_compares_enough(judged: list[Sequence]) -> None:
    requests = {repr((step.api, step.version, step.tree)) for each in judged for step in each.steps}
    assert len(requests) >= 10_000
    assert sum(each.is_life and len(each.steps) >= 20 for each in judged) == 420


def test_choices_are_told() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    assert [choice for choice in CHOICES if f"| {choice.difference} | {choice.why} |" not in page] == []


@pytest.mark.timeout(600)
def test_answers_are_kafkas(
    everything: list[Sequence], judged: list[Sequence], kafkas: tuple[str, dict[str, Answers]]
) -> None:
    version, theirs = kafkas
    assert version == KAFKA_VERSION
    found = judge(judged, raylog_answers(judged, theirs), theirs)
    listed = known_open()
    new = [f"{kind}: {names[0]}" for kind, names in sorted(found.unexplained.items()) if kind not in listed]
    assert not new, "\n".join(["neither as Kafka's, nor chosen, nor in open.txt:", *new])
    gone = [str(kind) for kind in sorted(listed - set(found.unexplained))]
    assert not gone, "\n".join(["in open.txt, but no difference any more:", *gone])
    assert idle_choices(found.used, (each.name for each in everything if is_unrecorded(each.name))) == []
