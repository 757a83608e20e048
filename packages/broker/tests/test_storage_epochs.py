"""Leader epochs and their start offsets."""

from __future__ import annotations

import pytest

from raylog.broker.storage.state.epochs import LeaderEpochs

ROWS = [(1, 0), (4, 10)]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(4, (4, 15)), (3, (1, 10)), (1, (1, 10)), (0, (0, 0)), (5, (-1, -1)), (-1, (-1, -1)), (-2, (-2, 0))],
)
def test_end_offset(asked: int, answer: tuple[int, int]) -> None:
    assert LeaderEpochs(ROWS).end_offset(asked, 15) == answer


def test_an_empty_log_knows_no_epoch() -> None:
    assert LeaderEpochs().end_offset(0, 0) == (-1, -1)
    assert LeaderEpochs().latest == -1


def test_an_epoch_without_records_gives_way() -> None:
    epochs = LeaderEpochs(ROWS)
    assert epochs.assign(5, 15)
    assert epochs.assign(6, 15)
    assert epochs.rows() == [*ROWS, (6, 15)]
    assert not epochs.assign(6, 20)
    assert not epochs.assign(2, 20)


def test_epoch_at() -> None:
    epochs = LeaderEpochs([(1, 5), (4, 10)])
    assert [epochs.epoch_at(offset) for offset in (4, 5, 9, 10, 99)] == [-1, 1, 1, 4, 4]


def test_truncation() -> None:
    epochs = LeaderEpochs(ROWS)
    assert not epochs.truncate_from_end(11)
    assert epochs.truncate_from_end(10)
    assert epochs.rows() == [(1, 0)]
    epochs = LeaderEpochs(ROWS)
    assert not epochs.truncate_from_start(0)
    assert epochs.truncate_from_start(3)
    assert epochs.rows() == [(1, 3), (4, 10)]
    assert epochs.truncate_from_start(12)
    assert epochs.rows() == [(4, 12)]
