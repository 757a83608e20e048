"""Long tests have two forms: one for each change, and a whole one for the night (``make test-nightly``)."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

NIGHTLY = os.environ.get("RAYLOG_TEST_FORM") == "nightly"


def some(things: Sequence[T], each: int) -> Sequence[T]:
    """Each ``each``-th of them, beginning at a place that the seed of the run's random order chooses; all at night."""
    return things if NIGHTLY else things[random.randrange(each) :: each]
