"""Where our client puts a record, the bytes that it sends, and who of a group reads what, compared with what Java's
client does: with what it did when it was asked, and, where there is Java, with what it does now."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from judge.clients import groups
from judge.clients.asked import SEED, all_questions, compare, read_by_java
from judge.clients.java import java_client
from judge.clients.kept import load
from judge.clients.question import Answer, Finding, Question
from kit.kafka_java import KAFKA_4
from kit.maven import missing_programs

pytestmark = pytest.mark.conformance

ROOT = Path(__file__).parents[2]
LIVE_EACH = 12
"""Of so many questions one is asked live."""


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return all_questions()


@pytest.fixture(scope="module")
def kept(questions: list[Question]) -> tuple[str, dict[str, Answer]]:
    return load(questions)


def faults(found: list[Finding]) -> list[str]:
    return [f"{each.question}: {each.what}"[:500] for each in found if not each.choice]


def test_enough_is_asked(questions: list[Question]) -> None:
    asked = Counter(each.ask for each in questions)
    assert asked["assign"] >= 2_000
    assert asked["batch"] >= 400
    assert sum(len(each.inputs["keys"]) for each in questions if each.ask == "keys") >= 3_000
    assert len({each.name for each in questions}) == len(questions)


@pytest.mark.timeout(300)
def test_client_does_what_javas_did(questions: list[Question], kept: tuple[str, dict[str, Answer]]) -> None:
    version, answers = kept
    assert version == KAFKA_4.version
    found = compare(questions, answers)
    assert faults(found) == []
    assert {each.choice for each in found} == {*groups.CHOICES}


def test_choices_are_told() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    assert [choice for choice in groups.CHOICES if f"| {choice.difference} | {choice.why} |" not in page] == []


@pytest.mark.parametrize(
    ("asked", "of_another"),
    [
        ("keys 0", "keys 1"),
        ("turns 0", "turns 1"),
        ("choices 0", "choices 1"),
        ("batch: mixed 0", "batch: mixed 1"),
        ("batch: gzip 0", "batch: gzip 1"),
        ("group 6: range", "group 6: roundrobin"),
    ],
)
def test_each_kind_of_difference_is_found(
    questions: list[Question], kept: tuple[str, dict[str, Answer]], asked: str, of_another: str
) -> None:
    _, answers = kept
    [question] = [each for each in questions if each.name == asked]
    assert faults(compare([question], {asked: answers[asked]})) == []
    assert faults(compare([question], {asked: answers[of_another]}))


def test_partition_that_nobody_reads_is_found(questions: list[Question]) -> None:
    [question] = [each for each in questions if each.name == "group 6: sticky"]
    assert faults(compare([question], {question.name: {}}))


@pytest.mark.timeout(300)
def test_java_answers_so_now_and_reads_what_ours_wrote() -> None:
    if missing := missing_programs():
        pytest.skip(f"needs {', '.join(missing)}")
    asked = all_questions(SEED + 1)[::LIVE_EACH]
    with java_client() as java:
        answers = java.ask_all(asked)
        found = [*compare(asked, answers), *read_by_java(asked, java)]
    assert sum(each.ask == "batch" for each in asked) >= 20
    assert faults(found) == []
