"""Our producers over replicated brokers that are killed, stopped and out of sync: in time, once, and in order."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from kit.machine import scaled, scaled_ms
from kit.proxied import behind_proxies
from kit.proxy import Fate, FrameProxy
from kit.replicated import ReplicatedCluster
from kit.waiting import wait_until
from raylog.client import Admin, Consumer, Delivery, Producer
from raylog.client.aio import AsyncProducer
from raylog.client.results import ProducerDescription, RecordMetadata
from raylog.protocol.errors import RequestTimedOut
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.wire.produce import parse_produce_response

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

PRODUCE = 0
NOT_ENOUGH, AFTER_APPEND = 19, 20
EXPIRATION, DAY_MS = "producer.id.expiration.ms", "86400000"
WAIT_S = 30.0
IN_FLIGHT = 5
BACKOFF_MS = scaled_ms(1_500)
"""Of the first retry. As a backoff for each of five lost batches it would be 24 s in the end."""
NEXT_ACK_S = scaled(12.0)
IMPATIENT_MS = 4_000
"""Time enough to connect, and to be told once at least what is in the way."""

Proxied = tuple[ReplicatedCluster, list[FrameProxy], str]


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    often = {"log.retention.check.interval.ms": "100"}  # producers are forgotten then, too
    with behind_proxies(tmp_path_factory.mktemp("proxied"), partitions=1, config=often) as made:
        yield made


def values(servers: str, topic: str) -> list[bytes | None]:
    with Consumer(servers, [topic], auto_offset_reset="earliest") as consumer:
        return [record.value for record in consumer.iterate(until_end=True)]


def lose_answers_and_leader(
    proxied: Proxied, topic: str, producer: Producer, batches: list[bytes]
) -> tuple[int, float, list[Delivery]]:
    """Send a batch for each of these values; once the leader has answered them all, in vain, it is killed.

    The leader, when it was killed (monotonic seconds), and the deliveries.
    """
    cluster, proxies, _ = proxied
    lost = Counter[int]()

    def lose(api_key: int) -> Fate:
        lost[api_key] += 1
        return Fate.DROP if api_key == PRODUCE else Fate.PASS

    victim = cluster.leader(topic, 0)
    proxies[victim].on_answer = lose
    deliveries = [producer.send(topic, value) for value in batches]
    wait_until(lambda: lost[PRODUCE] == len(batches), WAIT_S, "all are answered, in vain")
    killed = cluster.kill(victim)
    proxies[victim].close()
    return victim, killed, deliveries


def bring_back(proxied: Proxied, victim: int, topic: str) -> None:
    """The killed broker runs and is in sync again, and its answers arrive."""
    cluster, proxies, _ = proxied
    proxies[victim].on_answer = lambda _: Fate.PASS
    proxies[victim].reopen()
    cluster.start(victim)
    cluster.wait_serving(victim)
    cluster.wait_in_sync(topic, 1)


def test_what_was_in_flight_to_a_killed_leader_is_acknowledged_by_the_next_one_at_once(proxied: Proxied) -> None:
    """Five batches are in the leader's log, and its followers', when it dies before it has said so."""
    sent = [b"%d" % number for number in range(IN_FLIGHT + 2)]
    backoff: dict[str, Any] = {"retry_backoff_ms": BACKOFF_MS, "retry_backoff_max_ms": scaled_ms(60_000)}
    with Producer(proxied[2], linger_ms=0, batch_size=1, **backoff) as producer:
        assert producer.send("t", sent[0]).result(scaled(WAIT_S)).offset == 0
        victim, killed, flying = lose_answers_and_leader(proxied, "t", producer, sent[1:-1])
        last = producer.send("t", sent[-1])
        offsets = [delivery.result(scaled(WAIT_S)).offset for delivery in (*flying, last)]
        took = time.monotonic() - killed
    print(f"\n{IN_FLIGHT} batches acknowledged by the next leader, as the ones it had, {took:.2f} s after the kill")
    assert offsets == list(range(1, IN_FLIGHT + 2))
    assert values(proxied[2], "t") == sent
    assert took < NEXT_ACK_S
    bring_back(proxied, victim, "t")


def test_below_min_isr_it_tries_until_there_are_enough_replicas_and_repeats_nothing(proxied: Proxied) -> None:
    """A follower stops: the leader appends and waits in vain (error 20), then refuses at once (19), then it has it."""
    cluster, proxies, servers = proxied
    cluster.create_topic("strict", config={"min.insync.replicas": "3"})
    leader, controller = cluster.leader("strict", 0), cluster.controller()
    follower = next(other for other in cluster.running if other not in (leader, controller))
    codes = Counter[int]()

    def note(api_key: int, version: int, frame: bytes) -> bytes:
        if api_key == PRODUCE:
            _, response = parse_produce_response(version, frame)
            codes.update(partition.error_code for topic in response.topics for partition in topic.partitions)
        return frame

    gate = Barrier(3, timeout=scaled(WAIT_S))

    def connected() -> None:
        """The follower stops once both producers are: the leader counts on it for a second and a half only."""
        gate.wait()
        gate.wait()

    def send() -> RecordMetadata:
        with Producer(servers, linger_ms=0) as producer:
            producer.send("strict", b"thread").result(scaled(WAIT_S))
            connected()
            return producer.send("strict", b"thread").result(scaled(WAIT_S))

    async def send_in_a_loop() -> RecordMetadata:
        async with AsyncProducer(servers, linger_ms=0) as producer:
            await (await producer.aiosend("strict", b"loop"))
            await asyncio.to_thread(connected)
            return await (await producer.aiosend("strict", b"loop"))

    proxies[leader].edit_answer = note
    try:
        with ThreadPoolExecutor(2) as pool:
            sent = [pool.submit(send), pool.submit(lambda: asyncio.run(send_in_a_loop()))]
            gate.wait()
            cluster.pause(follower)
            gate.wait()
            wait_until(
                lambda: codes[NOT_ENOUGH] and codes[AFTER_APPEND],
                WAIT_S,
                "it is told both errors",
                instead=codes.copy,
            )
            with Producer(servers, linger_ms=0, delivery_timeout_ms=IMPATIENT_MS) as impatient:
                delivery = impatient.send("strict", b"never mind")
                with pytest.raises(RequestTimedOut, match=rf"{IMPATIENT_MS} ms \(strict-0: .*min\.insync\.replicas"):
                    delivery.result(scaled(WAIT_S))
            cluster.resume(follower)
            offsets = sorted(future.result(scaled(WAIT_S)).offset for future in sent)
    finally:
        cluster.resume(follower)
    print(f"\nanswers until there were enough replicas, by error code: {dict(codes)}")
    assert offsets == [2, 3]
    found = values(servers, "strict")
    assert found.count(b"never mind") <= 1  # what a producer gave up may be in the log
    assert sorted((value for value in found if value != b"never mind"), key=repr) == [b"loop"] * 2 + [b"thread"] * 2
    cluster.wait_in_sync("strict", 1)


def test_a_producer_that_was_forgotten_goes_on_and_its_retries_are_known_again(proxied: Proxied) -> None:
    """Its id has expired when it sends on; then the answers are lost, and the leader with them."""
    cluster, _, servers = proxied
    cluster.create_topic("forgetful")
    tp = TopicPartition(TopicName("forgetful"), PartitionIndex(0))
    sent = [b"%d" % number for number in range(5 + IN_FLIGHT)]
    with Producer(servers, linger_ms=0, batch_size=1) as producer, Admin(servers) as admin:

        def expire_after(ms: str | None) -> None:
            admin.alter_broker_configs(None, {EXPIRATION: ms})
            expected = DAY_MS if ms is None else ms
            wait_until(lambda: {expiration(each) for each in cluster.running} == {expected}, WAIT_S, "all know")

        def expiration(broker_id: int) -> str | None:
            return next(entry.value for entry in admin.describe_broker_configs(broker_id) if entry.name == EXPIRATION)

        def remembered() -> list[ProducerDescription]:
            return admin.describe_producers([tp])[tp]

        offsets = [producer.send(tp.topic, value).result(scaled(WAIT_S)).offset for value in sent[:3]]
        assert [each.last_sequence for each in remembered()] == [2]
        expire_after("100")
        wait_until(lambda: not remembered(), WAIT_S, "it is forgotten")
        expire_after(None)
        offsets += [producer.send(tp.topic, value).result(scaled(WAIT_S)).offset for value in sent[3:5]]
        assert [(each.producer_epoch, each.last_sequence) for each in remembered()] == [(0, 4)]
        victim, _, flying = lose_answers_and_leader(proxied, tp.topic, producer, sent[5:])
        offsets += [delivery.result(scaled(WAIT_S)).offset for delivery in flying]
        assert [(each.producer_epoch, each.last_sequence) for each in remembered()] == [(0, len(sent) - 1)]
    assert offsets == list(range(len(sent)))
    assert values(servers, tp.topic) == sent
    bring_back(proxied, victim, tp.topic)
