"""Clients of many topics: what one costs, many must not cost over and over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.proxied import proxied
from kit.proxy import FrameProxy
from raylog.client import Consumer
from raylog.client.aio import AsyncConsumer

METADATA = 3
TOPICS = [f"t{number}" for number in range(30)]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[FrameProxy, str]]:
    with proxied(tmp_path) as (cluster, proxy, address):
        for topic in TOPICS:
            cluster.create_topic(topic)
        yield proxy, address


def test_many_topics_are_looked_up_at_once(servers: tuple[FrameProxy, str]) -> None:
    proxy, address = servers
    with Consumer(address, TOPICS) as consumer:
        assert len(consumer.assignment()) == len(TOPICS)
        assert proxy.requests[METADATA] <= 2


def test_many_topics_are_looked_up_at_once_in_a_loop(servers: tuple[FrameProxy, str]) -> None:
    proxy, address = servers

    async def assigned() -> int:
        async with AsyncConsumer(address, TOPICS) as consumer:
            await consumer.poll(0)
            return len(consumer.assignment())

    assert asyncio.run(assigned()) == len(TOPICS)
    assert proxy.requests[METADATA] <= 2
