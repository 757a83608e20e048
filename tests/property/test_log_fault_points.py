"""One life of a log, in which every single file operation in turn fails: a full disk, or one that cannot read or write.

What was acknowledged (with a flush at each append) must be there after the broker starts on the repaired disk, nothing
may be acknowledged once an operation failed, and no failing operation is tried again. For a change each sixth fails,
at night each.
"""

from __future__ import annotations

import errno
import logging
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.faulty_files import FailingFileSystem, Fault, Loss, LossyFileSystem
from kit.forms import some
from kit.log_world import NOW, SMALL, LogWorld, live
from kit.partitions import batch
from raylog.protocol.errors import NotLeaderOrFollower, StorageError


class BreakingDisk(FailingFileSystem):
    """A disk of which one operation fails, the number ``at`` since it was made, and none after that."""

    def __init__(self, inner: LossyFileSystem, at: int, code: int) -> None:
        super().__init__(inner)
        self._disk = inner
        self._left = at
        self._code = code
        self.broken = ""
        """Which operation failed."""
        self.crash_at = None

    def meet(self, operation: str, path: Path) -> Fault | None:
        self._left -= 1
        if self._left == 0:
            self.broken = f"{operation} of {path.name}"
            raise OSError(self._code, os.strerror(self._code), str(path))
        return super().meet(operation, path)

    def after_crash(self, loss: Loss, rng: random.Random) -> LossyFileSystem:
        """The disk once it is repaired."""
        return self._disk.after_crash(loss, rng)


@pytest.mark.parametrize("loss", [Loss.KEPT, Loss.LOST])
def test_every_failing_operation_is_told_and_costs_nothing_acknowledged(
    loss: Loss, caplog: pytest.LogCaptureFixture, record_property: Callable[[str, object], None]
) -> None:
    topic = SMALL | {"flush.messages": "1"}
    failed = 0
    points = some(range(1, 100_000), 6)
    for point in points:
        rng = random.Random(point)
        world = LogWorld(LossyFileSystem(), topic)
        world.restart()
        world.dirs.close()
        disk = BreakingDisk(world.fs, point, (errno.ENOSPC, errno.EIO)[point % 2])
        world.fs = disk  # type: ignore[assignment]
        refused = False
        caplog.clear()
        try:
            world.open()
            live(world, loss, rng)
        except (StorageError, AssertionError):  # a stop that is not clean leaves no marker, which the world misses
            if not disk.broken:
                raise
            refused = True
        if not disk.broken:
            break
        failed += 1
        if refused and world.dirs.dirs[0].logs and world.dirs.offline():
            calls = disk.calls.copy()
            with pytest.raises((StorageError, NotLeaderOrFollower)):
                world.partition.append(batch(b"x", timestamps=[1]), now_ms=NOW)
            world.dirs.maintain(NOW, 10**9)
            world.dirs.close()
            assert disk.calls == calls, f"the disk was used after the failing {disk.broken}"
        assert refused or any(record.levelno >= logging.ERROR for record in caplog.records), (
            f"nobody was told of the failing {disk.broken}"
        )
        world.recover(loss, rng)
        world.check()
    assert failed * points.step > 500
    record_property("failing operations", failed)
