"""Long tests have two forms: one for each change, and a whole one for the night (``make test-nightly``)."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

NIGHTLY = os.environ.get("RAYLOG_TEST_FORM") == "nightly"
SEED = "RAYLOG_TEST_SEED"
"""The environment variable that has the seed of the run's random order."""


def some(things: Sequence[T], each: int, *, of: str = "") -> Sequence[T]:
    """Each ``each``-th of them, beginning at a place that the seed of the run's random order chooses; all at night."""
    return things if NIGHTLY else things[begin(each, of=of) :: each]


def begin(each: int, *, of: str = "") -> int:
    """A number below ``each``, the same for a test that is repeated alone.

    Within a test, chance begins with the seed and the test's name; while tests are collected, it depends on all, and
    on what it is ``of``.
    """
    collects = "PYTEST_CURRENT_TEST" not in os.environ
    return (random.Random(f"{os.environ.get(SEED)} {of}") if collects else random).randrange(each)
