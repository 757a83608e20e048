"""The form of long tests for each change: a part of them, which the run's seed chooses."""

from __future__ import annotations

import random

import pytest

from kit.forms import SEED, begin


def test_parameters_depend_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that is repeated alone is collected without those that chose at random before it."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    found = set()
    for seed in map(str, range(50)):
        monkeypatch.setenv(SEED, seed)
        first = begin(5)
        random.random()
        assert begin(5) == first
        found.add(first)
    assert found == set(range(5)), "each part has its turn"


def test_parameters_differ_by_what_they_are_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setenv(SEED, "1")
    found = [begin(5, of=str(number)) for number in range(50)]
    assert set(found) == set(range(5)), "in one run too, each part has its turn"
    assert [begin(5, of=str(number)) for number in range(50)] == found


def test_parts_within_a_test_differ() -> None:
    assert {begin(5) for _ in range(100)} == set(range(5))
