"""Rows as people see them."""

from __future__ import annotations

import json
from itertools import islice
from uuid import UUID

import pytest

from raylog.protocol.tables import as_json, cell, table


def test_numbers_stand_to_the_right_and_text_to_the_left() -> None:
    rows = [{"topic": "clicks", "offset": 7}, {"topic": "t", "offset": 12_345}]
    assert list(table(rows)) == [
        "topic   offset",
        "clicks       7",
        "t        12345",
    ]


def test_a_missing_number_keeps_its_column_numeric() -> None:
    assert list(table([{"n": None}, {"n": 10}])) == [" n", " -", "10"]


def test_columns_are_chosen_and_ordered() -> None:
    assert list(table([{"a": 1, "b": "x"}], ["b", "a"])) == ["b  a", "x  1"]
    assert list(table([], ["b", "a"])) == ["b  a"]
    assert list(table([])) == []


def test_a_table_without_end_is_printed_as_it_comes() -> None:
    endless = ({"n": n} for n in iter(int, 1))
    assert len(list(islice(table(endless), 5_000))) == 5_000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        ("", "-"),
        ([], "-"),
        ([1, 2], "1,2"),
        (True, "yes"),
        (False, "no"),
        (0, "0"),
        (1.005, "1.00"),
        ({"a": 1, "b": None}, "a=1,b=-"),
    ],
)
def test_cells(value: object, text: str) -> None:
    assert cell(value) == text


def test_json_knows_ids_and_keeps_letters() -> None:
    assert json.loads(as_json({"id": UUID(int=1)})) == {"id": "00000000-0000-0000-0000-000000000001"}
    assert as_json("ü") == '"ü"'
    with pytest.raises(TypeError, match="bytes"):
        as_json(b"")
