"""What raylog answers about groups, beside what Apache Kafka answered to the same requests when it was asked.

``kit.group_answers`` records Kafka's answers, which takes Java; this needs none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kit.group_answers import CONFIG, Asker, load
from kit.group_cases import CASES, CHOSEN, Step
from kit.node import Node

pytestmark = pytest.mark.conformance

RECORDED: dict[str, list[dict[str, Any]]] = load()["cases"]


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    with Node(tmp_path_factory.mktemp("answers"), config=CONFIG) as node, Asker(node.serve()) as asker:
        asker.prepare()
        yield asker


@pytest.mark.parametrize("name", RECORDED)
def test_answers_are_those_of_kafka(asker: Asker, name: str) -> None:
    rows = RECORDED[name]
    answers = asker.run(name, [_step(row) for row in rows])
    assert answers == [row.get("raylog", row["answer"]) for row in rows]


def test_recorded_requests_are_those_of_the_cases() -> None:
    """Else the cases were changed, and Kafka not asked again."""
    assert {name: tuple(_step(row) for row in rows) for name, rows in RECORDED.items()} == CASES


def test_answers_differ_from_kafka_only_where_chosen() -> None:
    assert {name for name, rows in RECORDED.items() if any("raylog" in row for row in rows)} == set(CHOSEN)


def _step(row: dict[str, Any]) -> Step:
    return Step(**{field: row[field] for field in Step._fields})
