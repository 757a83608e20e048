"""A member of a consumer group, by one of the Python clients that others wrote: a program for ``kit.foreign_groups``.

    python -m kit.foreign_member CLIENT SERVERS TOPIC GROUP STRATEGY INSTANCE SESSION

STRATEGY is range or cooperative-sticky; INSTANCE, a group.instance.id, is "-" for none; SESSION is session.timeout.ms.
It commits what it has read after each batch. On stdout it says ``owns P…`` and ``gave P…`` when its partitions change,
``read P OFFSET`` of each record, ``committed`` or ``refused TEXT`` of each commit, and ``error TEXT``. It leaves in
good order when its stdin ends, and says ``left``.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange

HEARTBEAT_MS = 300
POLL_S = 0.1
PATIENCE_MS = 5_000
"""kafka-python 3.0.12 forgets an assignment whose SyncGroup is answered after the poll that asked has timed out."""


class Membership(NamedTuple):
    """What it is a member of."""

    servers: str
    topic: str
    group: str
    strategy: str
    instance: str | None
    session_ms: int


class Told:
    """What it says; ``owned`` as its client has told so far."""

    def __init__(self) -> None:
        self.owned: set[int] = set()
        self.ended = threading.Event()
        threading.Thread(target=self._wait_for_end, daemon=True).start()

    def _wait_for_end(self) -> None:
        sys.stdin.read()
        self.ended.set()

    def say(self, *words: object) -> None:
        print(*words, flush=True)

    def gets(self, partitions: Iterable[int]) -> None:
        self.owned |= set(partitions)
        self.say("owns", *sorted(self.owned))

    def gives(self, partitions: Iterable[int]) -> None:
        given = self.owned & set(partitions)
        self.owned -= given
        self.say("gave", *sorted(given))

    def error(self, error: object) -> None:
        self.say("error", str(error).replace("\n", " "))


def confluent(of: Membership, told: Told) -> None:
    config: dict[str, Any] = {
        "bootstrap.servers": of.servers,
        "group.id": of.group,
        "partition.assignment.strategy": of.strategy,
        "session.timeout.ms": of.session_ms,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "error_cb": lambda error: None,  # those of connections, which librdkafka opens again
    }
    if of.instance is not None:
        config["group.instance.id"] = of.instance
    consumer = confluent_kafka.Consumer(config)
    consumer.subscribe(
        [of.topic],
        on_assign=lambda _, tps: told.gets(tp.partition for tp in tps),
        on_revoke=lambda _, tps: told.gives(tp.partition for tp in tps),
    )
    while not told.ended.is_set():
        record = consumer.poll(POLL_S)
        if record is None:
            continue
        if record.error() is not None:
            told.error(record.error())
            if record.error().fatal():
                return
            continue
        told.say("read", record.partition(), record.offset())
        try:
            consumer.commit(record, asynchronous=False)
        except confluent_kafka.KafkaException as error:
            told.say("refused", error)
        else:
            told.say("committed")
    consumer.close()


def kafka_python(of: Membership, told: Told) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka  # noqa: PLC0415 (without the warning)
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor  # noqa: PLC0415
        from kafka.coordinator.assignors.range import RangePartitionAssignor  # noqa: PLC0415

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            told.gives(tp.partition for tp in revoked)

        def on_partitions_assigned(self, assigned: Any) -> None:
            told.gets(tp.partition for tp in assigned)

        def on_partitions_lost(self, lost: Any) -> None:
            told.gives(tp.partition for tp in lost)

    strategies = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=of.servers.split(","),
        group_id=of.group,
        group_instance_id=of.instance,
        partition_assignment_strategy=[strategies[of.strategy]],
        session_timeout_ms=of.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    consumer.subscribe([of.topic], listener=Listener())
    while not told.ended.is_set():
        batches = consumer.poll(timeout_ms=PATIENCE_MS, max_records=10)
        for tp, records in batches.items():
            for record in records:
                told.say("read", tp.partition, record.offset)
        if batches:
            try:
                consumer.commit()
            except kafka.errors.CommitFailedError as error:
                told.say("refused", error)
            else:
                told.say("committed")
    consumer.close()


def aio_kafka(of: Membership, told: Told) -> None:
    asyncio.run(_aio_kafka(of, told))


async def _aio_kafka(of: Membership, told: Told) -> None:
    class Listener(aiokafka.ConsumerRebalanceListener):
        async def on_partitions_revoked(self, revoked: Any) -> None:
            told.gives(tp.partition for tp in revoked)

        async def on_partitions_assigned(self, assigned: Any) -> None:
            told.gets(tp.partition for tp in assigned)

    assert of.strategy == "range"
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=of.servers.split(","),
        group_id=of.group,
        group_instance_id=of.instance,
        partition_assignment_strategy=(AioRange,),
        session_timeout_ms=of.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    consumer.subscribe([of.topic], listener=Listener())
    await consumer.start()
    while not told.ended.is_set():
        batches = await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=10)
        for tp, records in batches.items():
            for record in records:
                told.say("read", tp.partition, record.offset)
        if batches:
            try:
                await consumer.commit()
            except aiokafka.errors.CommitFailedError as error:
                told.say("refused", error)
            else:
                told.say("committed")
    await consumer.stop()


CLIENTS: dict[str, Callable[[Membership, Told], None]] = {
    "confluent-kafka": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aio_kafka,
}


def main() -> None:
    client, servers, topic, group, strategy, instance, session_ms = sys.argv[1:]
    told, name = Told(), None if instance == "-" else instance
    try:
        CLIENTS[client](Membership(servers, topic, group, strategy, name, int(session_ms)), told)
    except Exception as error:  # noqa: BLE001 (whatever a client raises is what a test is about)
        told.error(repr(error))
    told.say("left")


if __name__ == "__main__":
    main()
