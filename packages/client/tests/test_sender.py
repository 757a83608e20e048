"""The sender alone, over a network that only writes down what it is asked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from raylog.client.batches.accumulator import Accumulator
from raylog.client.config.client import PRODUCER_SETTINGS, client_settings
from raylog.client.delivery import BatchOutcome
from raylog.client.network.connection import Address
from raylog.client.produce.producer_state import Continuation, Identity
from raylog.client.produce.sender import Sender
from raylog.client.telemetry.client_log import ClientLog
from raylog.coordination.host.clocks import monotonic_ms
from raylog.protocol.errors import RequestTimedOut, UnknownTopicId, UnsupportedVersion
from raylog.protocol.ids import NO_TOPIC_ID, PartitionIndex, TopicId, TopicName, TopicPartition
from raylog.protocol.records import Record

TP = TopicPartition(TopicName("t"), PartitionIndex(0))


class SilentNetwork:
    """One broker that takes every request and answers none."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        """For how long each poll would have waited."""
        self.fail: Callable[[], None] = lambda: None
        """Called by each poll."""
        self.requests = 0
        self.resets = 0
        self.metadata = SimpleNamespace(
            view=SimpleNamespace(version=1, errors={}, topic_id=lambda _: NO_TOPIC_ID, leader_of=lambda _: (0, 0)),
            need_update=lambda: None,
        )
        self.pool = self
        self.client_id = "c"
        self.log = ClientLog("c")

    def poll(self, timeout_ms: float) -> list[Any]:
        self.waits.append(timeout_ms)
        self.fail()
        return []

    def wait_ms(self, timeout_ms: float) -> float:
        return timeout_ms

    def ready(self, _: Address) -> bool:
        return True

    def leader_address(self, _: TopicPartition) -> Address:
        return Address("h", 1)

    def capacity(self, _: Address, max_in_flight: int) -> int:
        return max_in_flight - self.requests

    def send(self, *_: Any, **__: Any) -> None:
        self.requests += 1

    def reset(self) -> None:
        self.resets, self.requests = self.resets + 1, 0


def sender_over(
    network: Any, continues: Continuation | None = None, **config: Any
) -> tuple[Sender, Accumulator[BatchOutcome]]:
    given = {"enable_idempotence": continues is not None, "linger_ms": 0, **config}
    settings = client_settings(PRODUCER_SETTINGS, "h:1", given)
    accumulator: Accumulator[BatchOutcome] = Accumulator(
        batch_size=1_000,
        linger_ms=0,
        buffer_memory=1 << 20,
        new_outcome=lambda tp: BatchOutcome(tp.topic, tp.partition),
    )
    return Sender(settings, network, accumulator, Lock(), lambda: None, continues), accumulator


def one_batch(accumulator: Accumulator[BatchOutcome], created_ms: int) -> BatchOutcome:
    batch = accumulator.open_batch(TP, 100, created_ms, Record(b"v", timestamp=1))
    assert batch is not None
    return batch.outcome


def test_a_batch_that_has_failed_and_whose_answer_is_awaited_keeps_nobody_awake() -> None:
    network = SilentNetwork()
    sender, accumulator = sender_over(network, delivery_timeout_ms=5_000)
    outcome = one_batch(accumulator, monotonic_ms() - 4_990)
    sender.step()
    assert network.requests == 1
    while not outcome.done:
        sender.step()
    assert isinstance(outcome.error, RequestTimedOut)
    network.waits.clear()
    sender.step()
    assert network.waits[0] > 1_000


def test_after_a_step_that_failed_what_was_under_way_is_sent_again() -> None:
    network = SilentNetwork()
    sender, accumulator = sender_over(network, retry_backoff_ms=0)
    outcome = one_batch(accumulator, monotonic_ms())

    def fail() -> None:
        raise ZeroDivisionError

    network.fail = fail
    with pytest.raises(ZeroDivisionError):
        sender.step()
    assert network.requests == 1
    network.fail = lambda: None
    sender.mend()
    assert (network.resets, network.requests, outcome.done) == (1, 0, False)
    sender.step()
    assert network.requests == 1


def test_partitions_of_topics_that_are_idle_are_forgotten() -> None:
    network, kept = SilentNetwork(), {TP.topic}
    network.metadata.whole_answers, network.metadata.is_kept = 1, kept.__contains__
    sender, accumulator = sender_over(network, acks=0)
    outcome = one_batch(accumulator, monotonic_ms())

    def asked_again() -> None:
        network.metadata.view.version += 1
        network.metadata.whole_answers += 1

    network.fail = asked_again
    sender.step()
    assert (outcome.done, len(sender._states)) == (True, 1)
    kept.clear()
    sender.step()
    assert len(sender._states) == 0


def test_brokers_of_another_version_are_told_to_those_that_wait(caplog: pytest.LogCaptureFixture) -> None:
    network = SilentNetwork()
    sender, accumulator = sender_over(network)
    outcome = one_batch(accumulator, monotonic_ms())

    def refuse() -> None:
        raise UnsupportedVersion("h:1 speaks API 3 not at all")

    network.fail = refuse
    sender.step()
    assert isinstance(outcome.error, UnsupportedVersion)
    assert sender.fatal is outcome.error
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [
        "client c: nothing can be sent any more, make another producer: h:1 speaks API 3 not at all"
    ]


def test_a_producer_that_goes_on_fails_all_where_a_topic_of_it_was_made_anew() -> None:
    network, old, new = SilentNetwork(), TopicId(UUID(int=1)), TopicId(UUID(int=2))
    sender, accumulator = sender_over(network, Continuation(Identity(7, 3), {TP: 40}, {TP.topic: old}))
    network.metadata.view.topic_id = lambda _: new
    outcome = one_batch(accumulator, monotonic_ms())
    sender.step()
    assert isinstance(outcome.error, UnknownTopicId)
    assert isinstance(sender.fatal, UnknownTopicId)
    assert network.requests == 0
