"""connections.max.idle.ms of clients: what nobody uses is closed, what somebody waits for is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.machine import scaled, scaled_ms
from kit.proxied import proxied
from kit.proxy import FrameProxy
from kit.waiting import wait_until
from raylog.client import Consumer, Producer
from raylog.client.config.client import ADMIN_SETTINGS, client_settings
from raylog.client.network.connection import Address
from raylog.client.network.pool import Pool

pytestmark = pytest.mark.system

IDLE_MS = 200
FETCH = 1


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[FrameProxy]:
    with proxied(tmp_path) as (_, running, _servers):
        yield running


def servers(proxy: FrameProxy) -> str:
    return f"127.0.0.1:{proxy.port}"


def connected(pool: Pool, address: Address) -> bool:
    pool.poll(10)
    return pool.ready(address)


def test_an_idle_connection_is_closed_and_made_again(proxy: FrameProxy) -> None:
    pool = Pool(client_settings(ADMIN_SETTINGS, servers(proxy), {"connections_max_idle_ms": IDLE_MS}))
    address = Address("127.0.0.1", proxy.port)
    try:
        wait_until(lambda: connected(pool, address), 10, "a connection")
        assert pool.poll(10_000) == []  # it ends when there is something to close
        assert pool.least_loaded([address]) is None
        assert pool.problem(address) is None
        wait_until(lambda: connected(pool, address), 10, "another connection")
    finally:
        pool.close()
    assert proxy.connections == 2


@pytest.mark.parametrize("idle_ms", [0, -1])
def test_a_connection_may_be_kept_for_ever(proxy: FrameProxy, idle_ms: int) -> None:
    pool = Pool(client_settings(ADMIN_SETTINGS, servers(proxy), {"connections_max_idle_ms": idle_ms}))
    address = Address("127.0.0.1", proxy.port)
    try:
        wait_until(lambda: connected(pool, address), 10, "a connection")
        assert pool.wait_ms(5_000) == 5_000
    finally:
        pool.close()


def test_a_producer_that_pauses_loses_nothing(proxy: FrameProxy) -> None:
    with Producer(servers(proxy), connections_max_idle_ms=IDLE_MS, linger_ms=0) as producer:
        for number in range(3):
            made = proxy.connections
            assert producer.send("t", b"%d" % number, partition=0).result(scaled(20)).offset == number
            wait_until(lambda: not proxy.open_connections, 20, "the pause has closed the connection")
        assert proxy.connections > made


def test_a_request_in_flight_keeps_its_connection(proxy: FrameProxy) -> None:
    """An answer that takes long, as that of a fetch that waits for records, is no pause."""
    with (
        Consumer(servers(proxy), fetch_max_wait_ms=5 * IDLE_MS, connections_max_idle_ms=IDLE_MS) as consumer,
        Producer(servers(proxy), linger_ms=0) as producer,
    ):
        consumer.assign([("t", 0)])
        consumer.seek_to_beginning()
        assert consumer.poll(8 * IDLE_MS) == {}
        fetches, made = proxy.requests[FETCH], proxy.connections
        assert consumer.poll(12 * IDLE_MS) == {}
        assert proxy.requests[FETCH] - fetches >= 2
        assert proxy.connections == made
        producer.send("t", b"v", partition=0).result(scaled(20))
        assert [record.value for record in consumer.poll(scaled_ms(10_000))["t", 0]] == [b"v"]
