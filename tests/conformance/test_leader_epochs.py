"""A new leader epoch under clients that others wrote: fetches in the old one are refused, and they go on.

The leader stays the same, so nothing but FENCED_LEADER_EPOCH tells them. The answers are read by a proxy on their way.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from kit.leaders import begin_epoch
from kit.proxied import proxied
from kit.streams import AioKafkaStream, KcatStream, go_on
from kit.waiting import wait_until
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.wire.fetch import parse_fetch_response

from .foreign import CLIENTS, absent

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(180)]

FETCH = 1
EPOCHS = 3
WAIT_S = 30.0
WITHOUT_EPOCHS = frozenset({AioKafkaStream.name, KcatStream.name})
"""Clients whose fetches name no leader epoch (kcat's librdkafka is an old one): they are never refused for it."""


class Refusals:
    """Counts the errors in answers to Fetch."""

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()

    def look(self, api_key: int, version: int, frame: bytes) -> bytes:
        if api_key == FETCH:
            _, response = parse_fetch_response(version, frame)
            self.seen.update(part.error_code for topic in response.topics for part in topic.partitions)
        return frame

    @property
    def fenced(self) -> int:
        return self.seen[ErrorCode.fenced_leader_epoch.value]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_fetch_in_an_old_epoch_is_refused_and_nobody_notices(name: str, tmp_path: Path) -> None:
    if absent(name):
        pytest.skip(f"{name} is not installed")
    tp = TopicPartition(TopicName("epochs"), PartitionIndex(0))
    refusals = Refusals()
    with proxied(tmp_path) as (cluster, proxy, servers):
        proxy.edit_answer = refusals.look
        cluster.create_topic(tp.topic)
        with CLIENTS[name](servers, tp.topic) as stream:
            go_on([stream])
            for _ in range(EPOCHS):
                before = refusals.fenced
                begin_epoch(cluster, tp, 0)
                if name not in WITHOUT_EPOCHS:
                    wait_until(lambda: refusals.fenced > before, WAIT_S, "a fetch in the old epoch is refused")  # noqa: B023
                go_on([stream])
            stream.finish()
    assert stream.errors == []
    assert stream.acked == stream.sent
    assert stream.read == stream.expected
    assert bool(refusals.fenced) == (name not in WITHOUT_EPOCHS)
