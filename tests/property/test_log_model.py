"""The log against a list: append, roll, flush, truncate, delete, restart, crash anywhere, recover, read.

``RAYLOG_HYPOTHESIS_PROFILE=exhaustive`` runs far more and longer examples.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kit.faulty_files import Loss, LossyFileSystem
from kit.log_world import SMALL, LogWorld

EXHAUSTIVE = os.environ.get("RAYLOG_HYPOTHESIS_PROFILE") == "exhaustive"


class LogMachine(RuleBasedStateMachine):
    """Operations in any order, with a crash that may be waiting in any of them."""

    world: LogWorld
    loss: Loss
    rng: random.Random

    @initialize(flush_each=st.booleans(), segment_bytes=st.sampled_from([300, 700, 5000]))
    def begin(self, flush_each: bool, segment_bytes: int) -> None:
        topic = SMALL | {"segment.bytes": str(segment_bytes)}
        if flush_each:
            topic["flush.messages"] = "1"
        self.world = LogWorld(LossyFileSystem(), topic)
        self.loss, self.rng = Loss.KEPT, random.Random(0)

    def do(self, operation: Callable[[], None]) -> None:
        self.world.run(operation, self.loss, self.rng)

    @rule(timestamps=st.lists(st.integers(0, 50), min_size=1, max_size=6))
    def append(self, timestamps: list[int]) -> None:
        self.do(lambda: self.world.append(timestamps))

    @rule(timestamps=st.lists(st.integers(0, 50), min_size=1, max_size=3), producer=st.integers(0, 1))
    def append_idempotently(self, timestamps: list[int], producer: int) -> None:
        self.do(lambda: self.world.append(timestamps, self.world.producers[producer]))

    @rule()
    def roll(self) -> None:
        self.do(self.world.roll)

    @rule()
    def flush(self) -> None:
        self.do(self.world.flush)

    @rule(back=st.integers(0, 25))
    def truncate(self, back: int) -> None:
        self.do(lambda: self.world.truncate(max(self.world.end - back, self.world.start)))

    @rule()
    def retain(self) -> None:
        self.do(self.world.retain)

    @rule(back=st.integers(0, 25))
    def delete_records(self, back: int) -> None:
        self.do(lambda: self.world.delete_records(max(self.world.end - back, self.world.start)))

    @rule()
    def maintain(self) -> None:
        self.do(self.world.maintain)

    @rule()
    def restart(self) -> None:
        self.do(self.world.restart)

    @rule(
        after=st.integers(1, 12),
        loss=st.sampled_from(Loss),
        seed=st.integers(0, 2**32),
        torn=st.booleans(),
    )
    def let_crash(self, after: int, loss: Loss, seed: int, torn: bool) -> None:
        self.loss, self.rng = loss, random.Random(seed)
        self.world.fs.crash_after(after, self.rng if torn else None)

    @rule(loss=st.sampled_from(Loss), seed=st.integers(0, 2**32))
    def crash_now(self, loss: Loss, seed: int) -> None:
        self.world.recover(loss, random.Random(seed))

    @invariant()
    def equal(self) -> None:
        if hasattr(self, "world"):
            self.do(self.world.check)


LogMachine.TestCase.settings = settings(
    max_examples=5_000 if EXHAUSTIVE else 120,
    stateful_step_count=80 if EXHAUSTIVE else 30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestLogAgainstAList = LogMachine.TestCase
