"""One life of a log, crashed after every single file operation in turn, under each kind of loss.

``RAYLOG_HYPOTHESIS_PROFILE=exhaustive`` takes every point with many seeds; otherwise each is taken once per kind.
"""

from __future__ import annotations

import os
import random

import pytest

from kit.faulty_files import Loss, LossyFileSystem, SimulatedCrash
from kit.log_world import SMALL, LogWorld

SEEDS = range(40) if os.environ.get("RAYLOG_HYPOTHESIS_PROFILE") == "exhaustive" else range(1)
STEPS_AFTER_A_CRASH = 4
"""So many go on with what was recovered; the log is compared after the last."""


def live(world: LogWorld, loss: Loss, rng: random.Random) -> None:
    """Append, roll, truncate, checkpoint, retention, DeleteRecords, clean stop: each at least twice."""
    one, other = world.producers
    steps = [
        lambda: world.append([3, 1, 2]),
        lambda: world.append([5], one),
        world.maintain,
        lambda: world.append([4, 9], other),
        world.roll,
        lambda: world.append([7, 7, 7, 8], one),
        world.flush,
        lambda: world.append([1]),
        lambda: world.truncate(world.end - 2),
        lambda: world.append([6, 2], one),
        lambda: world.delete_records(world.start + 1),
        lambda: world.append([8], other),
        world.restart,
        lambda: world.append([11, 10], other),
        world.roll,
        lambda: world.append([2, 3], one),
        world.maintain,
        world.retain,
        world.restart,
        lambda: world.append([31, 30], one),
        world.flush,
        world.maintain,
        world.roll,
        lambda: world.append([40], other),
        *(lambda n=n: world.append([n, n + 1], one) for n in range(12)),  # type: ignore[misc]
        lambda: world.truncate(max(world.end - 9, world.start)),
        world.retain,
        world.flush,
        world.maintain,
        lambda: world.truncate(max(world.end - 12, world.start)),
        *(lambda n=n: world.append([n], one) for n in range(12)),  # type: ignore[misc]
        *(lambda n=n: world.append([n] * 5) for n in range(24)),  # type: ignore[misc]
        lambda: world.delete_records(world.end - 7),
        lambda: world.truncate(world.start + 1),
        lambda: world.append([12, 13, 14], one),
        lambda: world.delete_records(world.end - 1),
        lambda: world.truncate(world.end - 1),
        lambda: world.append([15]),
        world.flush,
        lambda: world.delete_records(world.end),
        *(lambda n=n: world.append([n] * 3) for n in range(8)),  # type: ignore[misc]
        world.retain,
        lambda: world.append([20], other),
        world.restart,
    ]
    left = len(steps)
    for step in steps:
        if world.crashes == 1:
            world.recover(Loss.LOST, rng)  # what was recovered is durable
            left = min(left, STEPS_AFTER_A_CRASH)
        if left == 0:
            return
        world.run(step, loss, rng)
        left -= 1


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
        for point in range(1, points + 1):
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
