"""Executors run what drivers of their own versions send, and nothing else."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from raylog.protocol.errors import UnsupportedVersion
from raylog.spark.shipping import shipped
from raylog.spark.versions import run_here, versions


def doubled(times: int, batches: Iterator[int]) -> Iterator[int]:
    for batch in batches:
        yield batch * times


def test_what_is_shipped_runs_where_the_versions_agree() -> None:
    ship = pickle.loads(pickle.dumps(shipped(doubled, 2)))  # type: ignore[arg-type]
    assert list(ship(iter([1, 2, 3]))) == [2, 4, 6]


def test_another_version_is_refused_in_one_sentence_before_anything_is_opened() -> None:
    """The bytes may be of classes that are not here."""
    theirs = versions().replace("raylog-client ", "raylog-client 9.")
    with pytest.raises(UnsupportedVersion) as refused:
        next(run_here(theirs, b"of a class that is not here", iter(())))
    text = str(refused.value)
    assert "\n" not in text
    assert f"runs {versions()}, the driver {theirs}: install the driver's on all nodes" in text
