"""One life of a log, crashed after every single file operation in turn, under each kind of loss.

``RAYLOG_HYPOTHESIS_PROFILE=exhaustive`` takes every point with many seeds; otherwise each is taken once per kind at
night, and each fifth for a change.
"""

from __future__ import annotations

import os
import random

import pytest

from kit.faulty_files import Loss, LossyFileSystem, SimulatedCrash
from kit.forms import some
from kit.log_world import SMALL, LogWorld, live

SEEDS = range(40) if os.environ.get("RAYLOG_HYPOTHESIS_PROFILE") == "exhaustive" else range(1)


def count_operations(topic: dict[str, str]) -> int:
    world = LogWorld(LossyFileSystem(), topic)
    first = world.fs.operations
    live(world, Loss.KEPT, random.Random(0))
    world.check()
    return world.fs.operations - first


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize("flush_each", [False, True])
def test_every_crash_point_leaves_a_valid_prefix(loss: Loss, flush_each: bool) -> None:
    topic = SMALL | ({"flush.messages": "1"} if flush_each else {})
    points = count_operations(topic)
    assert points > 100
    recovered = 0
    for seed in SEEDS:
        for point in some(range(1, points + 1), 5):
            rng = random.Random(seed * 100_000 + point)
            world = LogWorld(LossyFileSystem(), topic)
            world.fs.crash_after(point, rng)
            live(world, loss, rng)
            world.check()
            assert world.crashes, f"no crash at point {point} of {points}"
            recovered += 1
    print(f"crash points recovered ({loss.value}, flush each: {flush_each}): {recovered}")


@pytest.mark.parametrize("loss", Loss)
def test_a_crash_in_the_first_start_is_recovered_from(loss: Loss) -> None:
    started = LossyFileSystem()
    LogWorld(started)
    for point in range(1, started.operations + 1):
        fs = LossyFileSystem()
        fs.crash_after(point)
        with pytest.raises(SimulatedCrash):
            LogWorld(fs)
        world = LogWorld(fs.after_crash(loss, random.Random(point)))
        world.append([1, 2, 3])
        world.check()
