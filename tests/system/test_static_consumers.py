"""Static consumers (KIP-345), sync and async, against brokers in this process and a real ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kit.cluster import InProcessCluster
from kit.group_wire import WireMember
from kit.waiting import wait_until
from kit.zookeeper import running_zookeeper
from raylog.client import Admin, Consumer, Producer
from raylog.client.aio import AsyncConsumer
from raylog.client.config.texts import parse_address
from raylog.client.results import GroupDescription
from raylog.protocol.errors import FencedInstanceId, InvalidConfig

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

WAIT_S = 30.0
PARTITIONS = 4
RECORDS = 40
GROUP: dict[str, Any] = {"auto_offset_reset": "earliest", "session_timeout_ms": 60_000, "fetch_max_wait_ms": 50}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("static")
    with (
        running_zookeeper(root / "zookeeper") as zookeeper,
        InProcessCluster(root / "brokers", brokers=1, zookeeper=zookeeper.address) as cluster,
    ):
        cluster.create_topic("t", partitions=PARTITIONS)
        with Producer(cluster.bootstrap_servers) as producer:
            for number in range(RECORDS):
                producer.send("t", b"%d" % number, partition=number % PARTITIONS)
        yield cluster.bootstrap_servers


def await_share(consumer: Consumer, count: int, *others: Consumer) -> int:
    """Until it has so many partitions, and all polled; how many records it got meanwhile."""
    got = 0

    def has() -> bool:
        nonlocal got
        for other in others:
            other.poll(20)
        got += sum(map(len, consumer.poll(20).values()))
        return len(consumer.assignment()) == count

    wait_until(has, WAIT_S, f"it has {count} partitions")
    return got


def test_closed_consumer_is_back_where_it_was(servers: str) -> None:
    static = {**GROUP, "group_id": "back"}
    with Consumer(servers, "t", group_instance_id="b", **static) as other:
        with Consumer(servers, "t", group_instance_id="a", **static) as consumer:
            await_share(consumer, 2, other)
            had, id_before = consumer.assignment(), consumer.member_id
            while any(consumer.position(tp.topic, tp.partition) < RECORDS // PARTITIONS for tp in had):
                await_share(consumer, 2, other)
        other.poll(20)
        assert len(other.assignment()) == 2
        with Consumer(servers, "t", group_instance_id="a", **static) as again:
            assert await_share(again, 2, other) == 0, "it has committed all when it closed"
            assert (again.assignment(), again.member_id != id_before) == (had, True)
            again.unsubscribe()
            again.subscribe("t")
            await_share(again, 2, other)
            assert again.assignment() == had, "it has taken its own place"


def test_async_consumer_is_fenced_and_its_successor_closes(servers: str) -> None:
    static = {**GROUP, "group_id": "async", "group_instance_id": "a"}

    async def scenario() -> None:
        async with AsyncConsumer(servers, "t", **static) as older, AsyncExitStack() as stack:
            while len(older.assignment()) < PARTITIONS:
                await older.poll(20)
            newer = await stack.enter_async_context(AsyncConsumer(servers, "t", **static))
            while len(newer.assignment()) < PARTITIONS:
                await newer.poll(20)
            with pytest.raises(FencedInstanceId):
                await older.commit({("t", 0): 1})
            with pytest.raises(FencedInstanceId):
                await older.poll(20)
            await older.close()
            await newer.poll(20)
            assert len(newer.assignment()) == PARTITIONS

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


def test_admin_removes_consumer_that_does_not_come_back(servers: str) -> None:
    group = {**GROUP, "group_id": "removed"}
    with (
        Consumer(servers, "t", **group) as other,
        WireMember("removed", lambda: addresses(servers), instance="a") as it,
    ):
        with Consumer(servers, "t", group_instance_id="a", **group) as gone:
            await_share(gone, 2, other)
        with Admin(servers) as admin:
            described = admin.describe_groups(["removed"])["removed"]
        assert isinstance(described, GroupDescription)
        assert sorted(str(member.group_instance_id) for member in described.members) == ["None", "a"]
        assert it.leave().members[0].error_code == ErrorCode.none
        await_share(other, PARTITIONS)
        assert it.leave().members[0].error_code == ErrorCode.unknown_member_id


def addresses(servers: str) -> list[tuple[str, int]]:
    return [parse_address(text) for text in servers.split(",")]


def test_session_that_zookeeper_bounds_is_told(servers: str, caplog: pytest.LogCaptureFixture) -> None:
    static = {**GROUP, "group_id": "bounded", "group_instance_id": "a", "session_timeout_ms": 7_200_000}
    with Consumer(servers, "t", **static):
        assert "grants sessions of 1800000 ms, less than session.timeout.ms=7200000" in caplog.text


@pytest.mark.parametrize(
    "config", [{"group_instance_id": "a"}, {"group_id": "g", "group_instance_id": "a b"}], ids=["no-group", "name"]
)
def test_instance_that_cannot_be_is_refused(servers: str, config: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=r"group\.instance\.id"):
        Consumer(servers, "t", **config)
