"""Lines of the log that would repeat themselves."""

from __future__ import annotations

from raylog.client.telemetry.seldom import AGAIN_MS, Seldom


def test_line_is_due_once_and_again_a_minute_later() -> None:
    seldom = Seldom()
    assert [seldom.due("a", at_ms) for at_ms in (0, 1, AGAIN_MS - 1, AGAIN_MS, AGAIN_MS + 1)] == [
        0,
        None,
        None,
        2,
        None,
    ]
    assert seldom.due("b", 1) == 0


def test_kinds_that_came_long_ago_are_forgotten() -> None:
    seldom, most = Seldom(), 0
    for number in range(100_000):
        assert seldom.due(number, 100 * number) == 0
        most = max(most, len(seldom._told))
    assert most < 2_000, "600 came within a minute"
