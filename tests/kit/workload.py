"""A load on one topic through librdkafka that keeps a history: idempotent producers, a reader, and list-offsets.

with Workload(cluster.bootstrap_servers, "t", partitions=3) as load:
    load.wait_acked_everywhere()
    …                                  # whatever must not matter
judgement = load.judge()               # reads every partition from 0 and runs the checker
"""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from kit import history
from kit.forms import NIGHTLY
from kit.history import Recorder, Type
from kit.history_checker import Judgement, check
from kit.waiting import wait_until

WAIT_S = 30.0
STOP_S = 60.0
"""For what is under way to be answered: a client that hangs is told, not waited for."""
CLIENT: dict[str, Any] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "topic.metadata.refresh.interval.ms": 1_000,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "socket.connection.setup.timeout.ms": 1_000,
    "socket.timeout.ms": 2_000,
    "log_level": 0,
}
"""Short backoffs, so that what is measured is the brokers' time; shorter ones take it from the brokers."""
PRODUCER = {
    **CLIENT,
    "enable.idempotence": True,
    "max.in.flight.requests.per.connection": 1,  # with more it may send twice by itself: conformance/test_known_traps
    "linger.ms": 0,
    "request.timeout.ms": 2_000,
    "message.timeout.ms": 60_000,
}
READER = {
    **CLIENT,
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 50,
    "fetch.error.backoff.ms": 10,
}
CLOSE_S = 5.0
PAUSE_S = 0.002 if NIGHTLY else 0.01
"""Between two sends of a producer: the brokers' CPU is shared with it. For a change, some send is under way at nearly
any time, and three brokers compute half as much as at night."""
SLOT_S = 0.1
LEAST_ACKED = 100
"""Fewer show nothing: it runs until so many sends were acknowledged."""


class Workload:
    """Runs while its ``with`` lasts; then :meth:`judge`."""

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        partitions: int,
        producers: int = 2,
        producer_config: dict[str, Any] | None = None,
    ) -> None:
        self.recorder = Recorder()
        self.errors: list[KafkaError] = []
        """Sends that were given up, by librdkafka or by a broker."""
        self.resets: list[str] = []
        """What a reader was told instead of records."""
        self.acks: list[list[tuple[float, float]]] = [[] for _ in range(partitions)]
        """When each partition's acknowledged sends began and ended, monotonic seconds, by their ends."""
        self._servers = servers
        self._topic = topic
        self._partitions = range(partitions)
        self._producer_config = {**PRODUCER, **(producer_config or {}), "bootstrap.servers": servers}
        self._values = itertools.count()
        self._stopping = threading.Event()
        runs = [lambda n=n: self._produce(f"producer-{n}") for n in range(producers)]
        self._is_abandoned = False
        self._threads = [threading.Thread(target=run, daemon=True) for run in (*runs, self._read, self._ask_ends)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_abandoned = error is not None
        if not self._is_abandoned:
            self.wait_acked(LEAST_ACKED)
        self.stop()

    def stop(self) -> None:
        """Send no more, and wait for what is under way; not after a failure, when nobody may answer any more."""
        self._stopping.set()
        deadline = time.monotonic() + STOP_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if not self._is_abandoned:
            assert not any(thread.is_alive() for thread in self._threads), self._what_is_known()

    # --- what is asked of it meanwhile ---

    def acked_since(self, partition: int, since: float) -> float | None:
        """When the first send to the partition that began after ``since`` was acknowledged."""
        first = None
        for begun, ended in reversed(self.acks[partition].copy()):
            if ended <= since:
                break
            if begun > since:
                first = ended
        return first

    def wait_acked(self, count: int, timeout_s: float = WAIT_S) -> None:
        """Until so many sends were acknowledged."""
        wait_until(lambda: sum(map(len, self.acks)) >= count, timeout_s, f"{count} acknowledgements")

    def wait_acked_everywhere(self, since: float = 0.0, timeout_s: float = WAIT_S) -> None:
        """Until each partition acknowledged something after ``since``."""
        wait_until(
            lambda: all(self.acked_since(partition, since) for partition in self._partitions),
            timeout_s,
            "every partition acknowledges",
            instead=self._what_is_known,
        )

    def _what_is_known(self) -> str:
        acked = [len(acks) for acks in self.acks]
        alive = [thread.name for thread in self._threads if thread.is_alive()]
        return f"acked so far {acked}, given up {self.errors[:3]}, threads alive {alive}"

    def longest_gap(self) -> float:
        """The longest time that a partition was without acknowledgements, seconds."""
        gaps = [after - before for acks in self.acks for (_, before), (_, after) in itertools.pairwise(acks)]
        return max(gaps, default=0.0)

    def availability(self, begun: float, ended: float) -> float:
        """The share of tenths of a second from ``begun`` to ``ended`` with an acknowledgement, over all partitions."""
        slots = {
            (partition, int((when - begun) / SLOT_S))
            for partition, acks in enumerate(self.acks)
            for _, when in acks
            if begun <= when < ended
        }
        return len(slots) / (len(self.acks) * max(1, int((ended - begun) / SLOT_S)))

    def judge(self, *, keep: Path | None = None, least_acked: int = LEAST_ACKED) -> Judgement:
        """Read every partition from 0 to its end and check the history, which ``keep`` gets, if given."""
        self._drain()
        ops = self.recorder.ops()
        if keep is not None:
            history.save(ops, keep)
        return check(ops, least_acked=least_acked)

    # --- its threads ---

    def _produce(self, name: str) -> None:
        producer = Producer(self._producer_config)
        partitions = itertools.cycle(self._partitions)
        while not self._stopping.wait(PAUSE_S):
            self._send(producer, name, next(partitions))
            producer.poll(0)
        if self._is_abandoned:
            producer.purge()
        producer.flush(WAIT_S)

    def _send(self, producer: Producer, name: str, partition: int) -> None:
        value = next(self._values)
        begun = time.monotonic()
        number = self.recorder.invoke(name, "send", partition=partition, value=value)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.errors.append(error)
                self.recorder.done(name, number, Type.INFO, "send")
            else:
                offset = message.offset()
                known = {} if offset is None or offset < 0 else {"offset": offset}
                self.recorder.done(name, number, Type.OK, "send", **known)
                self.acks[partition].append((begun, time.monotonic()))

        try:
            producer.produce(self._topic, b"%d" % value, partition=partition, on_delivery=delivered)
        except BufferError:
            self.recorder.done(name, number, Type.FAIL, "send")

    def _consumer(self) -> Consumer:
        consumer = Consumer({**READER, "bootstrap.servers": self._servers, "group.id": "workload"})
        consumer.assign([TopicPartition(self._topic, partition, 0) for partition in self._partitions])
        return consumer

    def _read(self) -> None:
        consumer = self._consumer()
        try:
            while not self._stopping.is_set():
                self._poll(consumer, "reader", 0.05)
        finally:
            _close(consumer)

    def _poll(self, consumer: Consumer, name: str, timeout_s: float, *, final: bool = False) -> list[list[int]]:
        messages = consumer.consume(1_000, timeout_s)
        number = self.recorder.invoke(name, "poll", assignment=0, final=final)
        records = []
        for message in messages:
            if (error := message.error()) is not None:
                if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    self.resets.append(error.str())
                continue
            value = message.value()
            assert isinstance(value, bytes)
            records.append([message.partition(), message.offset(), int(value)])
        self.recorder.done(name, number, Type.OK, "poll", records=records)
        return records

    def _ask_ends(self) -> None:
        consumer = self._consumer()
        try:
            while not self._stopping.wait(0.05):
                for partition in self._partitions:
                    self._end(consumer, "asker", partition)
        finally:
            _close(consumer)

    def _end(self, consumer: Consumer, name: str, partition: int) -> int:
        number = self.recorder.invoke(name, "ends")
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=2.0)
        except KafkaException:
            self.recorder.done(name, number, Type.INFO, "ends")
            return -1
        self.recorder.done(name, number, Type.OK, "ends", ends=[[partition, end]])
        return int(end)

    def _drain(self) -> None:
        consumer = self._consumer()
        positions = dict.fromkeys(self._partitions, 0)

        def at_the_end() -> bool:
            for partition, offset, _ in self._poll(consumer, "drain", 0.1, final=True):
                positions[partition] = offset + 1
            return all(self._end(consumer, "drain", partition) == positions[partition] for partition in positions)

        try:
            wait_until(at_the_end, WAIT_S, "every partition is read to its end")
        finally:
            _close(consumer)


def _close(consumer: Consumer) -> None:
    """Waits for a while only: when brokers came and went, librdkafka's close may hang for ever over the handle of one
    that it dropped (its issue 4131, open; 2.16). All that the consumer was there for is done by now.
    """
    closing = threading.Thread(target=consumer.close, daemon=True)
    closing.start()
    closing.join(CLOSE_S)
