"""What other threads do to a producer or a consumer that waits. No broker is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kit.machine import scaled_ms
from raylog.client import Consumer, Producer
from raylog.client.network.metadata import ClusterView
from raylog.client.results import PartitionDescription, TopicDescription
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import NO_TOPIC_ID, BrokerId, LeaderEpoch, PartitionIndex, TopicName

NOWHERE = "127.0.0.1:1"
TOPIC = TopicName("t")
LONG_MS = scaled_ms(10_000)


@pytest.fixture
def consumer() -> Iterator[Consumer]:
    with Consumer(NOWHERE, auto_offset_reset="earliest") as made:
        made.assign([(TOPIC, 0)])
        made._network.pool.poll(0)
        yield made


@pytest.mark.parametrize(
    "change",
    [
        lambda consumer: consumer.assign([(TOPIC, 0), (TOPIC, 1)]),
        lambda consumer: consumer.resume(),
        lambda consumer: consumer.seek(TOPIC, 0, 7),
        lambda consumer: consumer.seek_to_beginning(),
        lambda consumer: consumer.seek_to_end(),
        lambda consumer: consumer.seek_to_time(1_000),
    ],
)
def test_change_of_what_is_read_wakes_a_poll(consumer: Consumer, change: Callable[[Consumer], None]) -> None:
    """That waits, or begins to, for what was read before."""
    begun = time.monotonic()
    change(consumer)
    consumer._network.pool.poll(LONG_MS)
    assert time.monotonic() - begun < LONG_MS / 2_000


class Racing(Producer):
    """Whose metadata loses the topic as soon as it was found there."""

    def _wait(self, condition: Callable[[], Any], what: str | RaylogError) -> Any:
        found = condition()
        self._network.metadata.view = ClusterView(version=2)
        return found


def test_topic_that_is_forgotten_meanwhile_is_routed_as_found() -> None:
    broker = BrokerId(1)
    partition = PartitionDescription(PartitionIndex(0), broker, LeaderEpoch(0), (broker,), (broker,))
    with Racing(NOWHERE, delivery_timeout_ms=50, request_timeout_ms=40, linger_ms=0) as producer:
        topics = {TOPIC: TopicDescription(TOPIC, NO_TOPIC_ID, (partition,))}
        producer._network.metadata.view = ClusterView(topics=topics, led={TOPIC: (0,)}, version=1)
        delivery = producer.send(TOPIC, b"v")
        with pytest.raises(RaylogError, match="t-0: 1 records were not delivered"):
            delivery.result(LONG_MS / 1_000)
