"""The throttle of replication: what is taken keeps to the rate, however large the answers are."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.broker.config import FOREVER
from raylog.broker.replication.quota import BURST_MS, ReplicationQuota, is_throttled
from raylog.protocol.ids import MonotonicMs

RATE = 1000


def allows(quota: ReplicationQuota, now_ms: int, rate: int = RATE) -> bool:
    return quota.allows(rate, MonotonicMs(now_ms))


def test_what_was_too_much_is_waited_off() -> None:
    quota = ReplicationQuota(nullcontext())
    assert allows(quota, 0)
    quota.take(500)
    assert not allows(quota, 499)
    assert allows(quota, 500)


def test_a_pause_saves_up_a_burst_and_no_more() -> None:
    quota = ReplicationQuota(nullcontext())
    assert allows(quota, 0)
    assert allows(quota, 3_600_000)
    quota.take(RATE * BURST_MS // 1000)
    assert allows(quota, 3_600_000)
    quota.take(1)
    assert not allows(quota, 3_600_000)


def test_no_rate_is_no_limit_and_leaves_no_debt() -> None:
    quota = ReplicationQuota(nullcontext())
    for now_ms in range(3):
        assert allows(quota, now_ms, FOREVER)
        quota.take(1 << 40)
    assert allows(quota, 3, FOREVER)
    assert allows(quota, 3)
    quota.take(1)
    assert not allows(quota, 3), "nothing was saved up, either"
    assert allows(quota, 4)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 2_000)), min_size=1, max_size=100))
def test_the_rate_is_kept_over_any_time(asked: list[tuple[int, int]]) -> None:
    """At most the rate, a burst, and the one answer that was allowed before its size was known."""
    quota = ReplicationQuota(nullcontext())
    now_ms = taken = 0
    for pause_ms, size in asked:
        now_ms += pause_ms
        if allows(quota, now_ms):
            quota.take(size)
            taken += size
            assert taken <= RATE * (now_ms + BURST_MS) / 1000 + size


@pytest.mark.parametrize(
    ("replicas", "expected"), [((), False), (("*",), True), (("3:1", "4:2"), True), (("3:2", "4:1"), False)]
)
def test_which_replicas_are_throttled(replicas: tuple[str, ...], expected: bool) -> None:
    assert is_throttled(replicas, partition=3, broker=1) is expected
