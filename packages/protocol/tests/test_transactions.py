"""Which batches of a fetch consumers see."""

from __future__ import annotations

import pickle
import struct

from hypothesis import given
from hypothesis import strategies as st

from raylog.protocol.batches.transactions import AbortedTransaction, visible_batches
from raylog.protocol.records import Batches, Record, batch_headers, decode_batches, encode_batch

ABORT, COMMIT = 0, 1


def batch(offset: int, producer: int = -1, *, count: int = 1, transactional: bool = True) -> bytes:
    """Records whose values are their offsets."""
    return encode_batch(
        [Record(b"%d" % (offset + n)) for n in range(count)],
        base_offset=offset,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=0 if producer >= 0 else -1,
        transactional=transactional and producer >= 0,
    )


def marker(offset: int, producer: int, kind: int) -> bytes:
    """What ends a transaction: a control record (version 0, kind), KIP-98."""
    record = Record(struct.pack(">hi", 0, 0), struct.pack(">hh", 0, kind))
    return encode_batch(
        [record], base_offset=offset, producer_id=producer, producer_epoch=0, transactional=True, control=True
    )


def values(data: bytes, *aborted: tuple[int, int], from_offset: int = 0) -> list[int]:
    listed = [AbortedTransaction(*one) for one in aborted]
    return [int(r.value or b"") for r in decode_batches(data, from_offset=from_offset, aborted=listed)]


def test_markers_are_never_seen() -> None:
    assert values(batch(0, 7) + marker(1, 7, COMMIT) + batch(2)) == [0, 2]


def test_an_aborted_transaction_ends_at_its_marker() -> None:
    data = batch(0, 7, count=2) + batch(2) + batch(3, 7) + marker(4, 7, ABORT) + batch(5, 7) + marker(6, 7, COMMIT)
    assert values(data) == [0, 1, 2, 3, 5]
    assert values(data, (7, 0)) == [2, 5]


def test_only_the_producer_whose_transaction_it_was_is_left_out_and_only_from_its_first_offset_on() -> None:
    data = batch(0, 7) + marker(1, 7, COMMIT) + batch(2, 8) + batch(3, 7) + marker(4, 7, ABORT) + marker(5, 8, COMMIT)
    assert values(data, (7, 3)) == [0, 2]


def test_a_transaction_that_began_before_the_fetch_is_left_out_from_its_first_batch_on() -> None:
    assert values(batch(10, 7) + marker(11, 7, ABORT) + batch(12, 7), (7, 3)) == [12]


def test_one_producer_may_abort_more_than_once_and_the_list_comes_in_any_order() -> None:
    data = batch(0, 7) + marker(1, 7, ABORT) + batch(2, 7) + marker(3, 7, COMMIT) + batch(4, 7) + marker(5, 7, ABORT)
    assert values(data, (7, 4), (7, 0)) == [2]


def test_what_the_producer_sends_outside_of_transactions_is_seen() -> None:
    assert values(batch(0, 7) + batch(1, 7, transactional=False) + marker(2, 7, ABORT), (7, 0)) == [1]


def test_batches_keep_what_was_aborted_and_begin_where_they_are_read_from() -> None:
    data = batch(0, 7) + batch(1, 8) + batch(2) + marker(3, 7, ABORT) + batch(4, 7, count=3)
    found: Batches = pickle.loads(pickle.dumps(Batches(data, 9, 1, (AbortedTransaction(7, 0),))))
    assert [record.value for record in found.records()] == [b"1", b"2", b"4", b"5", b"6"]
    assert [header.base_offset for _, header in found.visible()] == [1, 2, 4]
    assert found.next_offset == 7


class Log:
    """Transactions of some producers side by side, and what became of each record."""

    def __init__(self) -> None:
        self.data = b""
        self.end = 0
        self.open: dict[int, list[int]] = {}
        self.aborted: list[AbortedTransaction] = []
        self.lost: set[int] = set()
        self.written: list[int] = []

    def send(self, producer: int) -> None:
        self.data += batch(self.end, producer)
        self.open.setdefault(producer, []).append(self.end)
        self.written.append(self.end)
        self.end += 1

    def finish(self, producer: int, kind: int) -> None:
        offsets = self.open.pop(producer, [])
        if not offsets:
            return
        self.data += marker(self.end, producer, kind)
        self.end += 1
        if kind == ABORT:
            self.aborted.append(AbortedTransaction(producer, offsets[0]))
            self.lost.update(offsets)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["send", "send", "commit", "abort"])), max_size=30), st.data()
)
def test_any_transactions_read_from_anywhere_give_what_was_not_aborted(
    steps: list[tuple[int, str]], data: st.DataObject
) -> None:
    log = Log()
    for producer, step in steps:
        if step == "send":
            log.send(producer)
        else:
            log.finish(producer, ABORT if step == "abort" else COMMIT)
    for producer in list(log.open):
        log.finish(producer, data.draw(st.sampled_from([ABORT, COMMIT])))
    cuts = [pos for pos, _ in batch_headers(log.data)]
    cut = data.draw(st.sampled_from([*cuts, len(log.data)]))  # an answer may begin at any batch
    first = next((header.base_offset for pos, header in batch_headers(log.data) if pos == cut), log.end)
    answer = log.data[cut:]
    listed = data.draw(st.permutations([one for one in log.aborted if ends_behind(log, one, first)]))
    assert values(answer, *listed) == [offset for offset in log.written if offset >= first and offset not in log.lost]
    assert len(list(visible_batches(answer, listed))) == len([pos for pos in cuts if pos >= cut])


def ends_behind(log: Log, aborted: AbortedTransaction, first: int) -> bool:
    """Brokers list the transactions whose markers lie at or behind the place that was asked for."""
    ends = (
        header.base_offset
        for _, header in batch_headers(log.data)
        if header.is_control and header.producer_id == aborted.producer_id and header.base_offset > aborted.first_offset
    )
    return next(ends) >= first
