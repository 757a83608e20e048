"""Everything that ``judge`` asks, asked of our brokers, and compared with what Apache Kafka answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from judge.asker import Answers
from judge.choices import CHOICES
from judge.judgement import idle_choices, judge, known_open
from judge.recorded import load, recorded_sequences
from judge.running import raylog_answers
from judge.steps import Sequence
from kit.forms import some
from kit.kafka_broker import KAFKA_VERSION

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def everything() -> list[Sequence]:
    return list(recorded_sequences())


@pytest.fixture(scope="module")
def kafkas(everything: list[Sequence]) -> tuple[str, dict[str, Answers]]:
    return load(everything)


def test_the_judge_compares_enough(everything: list[Sequence]) -> None:
    requests = {repr((step.api, step.version, step.tree)) for each in everything for step in each.steps}
    assert len(requests) >= 10_000
    assert sum(each.is_life and len(each.steps) >= 20 for each in everything) == 630 + 33


def test_lives_leave_records_that_are_read(everything: list[Sequence], kafkas: tuple[str, dict[str, Answers]]) -> None:
    left = [kafkas[1][each.name][-1] for each in everything if each.name.startswith(("producer ", "topic "))]
    read = [part["records"] for answer in left for topic in answer["responses"] for part in topic["partitions"]]
    assert sum(len(records or ()) for records in read) > 900


def test_choices_are_told() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    assert [choice for choice in CHOICES if f"| {choice.difference} | {choice.why} |" not in page] == []


@pytest.mark.timeout(600)
def test_answers_are_kafkas(everything: list[Sequence], kafkas: tuple[str, dict[str, Answers]]) -> None:
    """For a change, a third of the sequences; whether each choice is still needed, and each open kind still open, takes
    all.
    """
    version, theirs = kafkas
    assert version == KAFKA_VERSION
    asked = some(everything, 3)
    found = judge(asked, raylog_answers(asked, theirs), theirs)
    listed = known_open()
    new = [f"{kind}: {names[0]}" for kind, names in sorted(found.unexplained.items()) if kind not in listed]
    assert not new, "\n".join(["neither as Kafka's, nor chosen, nor in open.txt:", *new])
    if len(asked) < len(everything):
        return
    gone = [str(kind) for kind in sorted(listed - set(found.unexplained))]
    assert not gone, "\n".join(["in open.txt, but no difference any more:", *gone])
    assert idle_choices(found.used) == []
