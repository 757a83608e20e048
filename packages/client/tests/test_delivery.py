from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from threading import Thread

import pytest

from kit.machine import scaled
from raylog.client.delivery import BatchDelivery, BatchOutcome, Deliveries, Delivery, delivers_here
from raylog.protocol.errors import MessageTooLarge


def test_every_record_of_a_batch_gets_its_own_offset() -> None:
    outcome = BatchOutcome("t", 3)
    first, second = Delivery(outcome, 0, 111), Delivery(outcome, 1, 222)
    assert not first.done()
    outcome.succeed(40)
    assert first.result(0) == ("t", 3, 40, 111)
    assert second.result(0) == ("t", 3, 41, 222)
    assert second.exception() is None


def test_the_brokers_time_and_an_unknown_offset_are_told() -> None:
    stamped, unknown = BatchOutcome("t", 0), BatchOutcome("t", 0)
    stamped.succeed(7, 999)
    unknown.succeed(-1)
    assert Delivery(stamped, 0, 1).result().timestamp == 999
    assert Delivery(unknown, 5, 1).result().offset == -1


def test_an_outcome_is_known_exactly_once() -> None:
    outcome = BatchOutcome("t", 0)
    outcome.fail(MessageTooLarge("too large"))
    with pytest.raises(RuntimeError, match="already known"):
        outcome.succeed(1)
    with pytest.raises(MessageTooLarge):
        Delivery(outcome, 0, 0).result()


def test_waiting_ends_with_the_outcome_or_the_time() -> None:
    outcome = BatchOutcome("t", 0)
    delivery = Delivery(outcome, 0, 0)
    with pytest.raises(TimeoutError):
        delivery.result(0.001)
    waiter = Thread(target=delivery.result)
    waiter.start()
    outcome.succeed(0)
    waiter.join(scaled(10))
    assert not waiter.is_alive()


def test_callbacks_run_once_each_whenever_they_come(caplog: pytest.LogCaptureFixture) -> None:
    outcome = BatchOutcome("t", 0)
    delivery = Delivery(outcome, 0, 0)
    called: list[str] = []

    def broken(_: Delivery) -> None:
        called.append("broken")
        raise ValueError("the user's mistake")

    delivery.add_done_callback(broken)
    delivery.add_done_callback(lambda done: called.append(f"early {done.done()}"))
    outcome.succeed(0)
    delivery.add_done_callback(lambda _: called.append("late"))
    assert called == ["broken", "early True", "late"]
    assert "the user's mistake" in caplog.text


def test_what_a_callback_raises_here_ends_only_what_it_should(caplog: pytest.LogCaptureFixture) -> None:
    """The outcome is known, so it runs in the user's thread: an Exception is logged, and what is to end that thread
    does."""
    outcome = BatchOutcome("t", 3)
    outcome.succeed(0)
    delivery = Delivery(outcome, 0, 0)
    for error in (ValueError, SystemExit, KeyboardInterrupt, GeneratorExit):
        with nullcontext() if error is ValueError else pytest.raises(error):
            delivery.add_done_callback(raising(error))
    assert [record.getMessage() for record in caplog.records] == ["a delivery callback for t-3 raised"]


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_a_callback_raises_ends_no_thread_that_delivers(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    outcome = BatchOutcome("t", 3)
    Delivery(outcome, 0, 0).add_done_callback(raising(error))
    went_on: list[bool] = []

    def deliver() -> None:
        delivers_here()
        outcome.succeed(0)
        Delivery(outcome, 0, 0).add_done_callback(raising(error))
        went_on.append(True)

    thread = Thread(target=deliver)
    thread.start()
    thread.join(scaled(10))
    assert went_on == [True]
    assert [record.getMessage() for record in caplog.records] == ["a delivery callback for t-3 raised"] * 2


def raising(error: type[BaseException]) -> Callable[[Delivery], None]:
    def callback(_: Delivery) -> None:
        raise error("the user's")

    return callback


def test_the_records_of_a_split_batch_are_where_their_part_is() -> None:
    outcome = BatchOutcome("t", 0)
    whole = batch_of(outcome, 5)
    records = [Delivery(outcome, index, 1) for index in range(5)]
    called: list[int] = []
    records[0].add_done_callback(lambda done: called.append(done.result(0).offset))
    first, second = outcome.split([2, 3])
    third, fourth = second.split([1, 2])
    assert (first.whole, fourth.whole, outcome.whole) == (outcome, outcome, outcome)
    fourth.succeed(90, 7)
    first.succeed(40)
    assert not records[0].done()
    assert not whole.done()
    third.fail(MessageTooLarge("too large"))
    assert called == [40]
    assert [record.result(0).offset for record in (*records[:2], *records[3:])] == [40, 41, 90, 91]
    assert [record.result(0).timestamp for record in (records[1], records[4])] == [1, 7]
    assert records[1].exception(0) is None
    with pytest.raises(MessageTooLarge, match="too large"):
        records[2].result(0)
    assert whole.failed() == 1
    assert len(whole) == 5
    with pytest.raises(MessageTooLarge, match="too large"):
        whole.result(0)


def test_where_the_rows_of_a_split_batch_landed_is_told_by_part() -> None:
    outcome = BatchOutcome("t", 0)
    whole = batch_of(outcome, 5)
    first, second = outcome.split([2, 3])
    first.succeed(7)
    second.succeed(20)
    assert whole.result(0) == [("t", 0, 7, 2), ("t", 0, 20, 3)]


def batch_of(outcome: BatchOutcome, rows: int) -> BatchDelivery:
    delivery = BatchDelivery()
    delivery.add(outcome, rows)
    return delivery


def test_a_task_hears_of_a_failed_delivery_with_the_next_one() -> None:
    first, second, third = (BatchOutcome("t", 0) for _ in range(3))
    deliveries = Deliveries()
    deliveries.add(batch_of(first, 2))
    first.succeed(0)
    deliveries.add(batch_of(second, 3))
    assert deliveries.delivered == 2
    second.fail(MessageTooLarge("t-0: too large"))
    with pytest.raises(MessageTooLarge, match="t-0: too large"):
        deliveries.add(batch_of(third, 4))
    third.succeed(2)
    deliveries.finish()
    assert deliveries.delivered == 6
