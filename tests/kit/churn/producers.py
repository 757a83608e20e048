"""Idempotent producers with acks=all: librdkafka's and our own by topic name, and one by topic id."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import confluent_kafka

from kit.churn.topics import Log, payload
from kit.churn.world import ChurnThread, Unanswered, World
from kit.history import Type
from kit.workload import PRODUCER
from raylog.client.delivery import Delivery
from raylog.client.producer import Producer
from raylog.protocol.errors import ErrorCode, RaylogError
from raylog.protocol.records import Record, encode_batch

__all__ = ["ById", "Librdkafka", "Ours"]

FLUSH_S = 90.0
MOST_AT_ONCE = 5
MESSAGE_TIMEOUT_MS = 60_000
INIT_PRODUCER_ID = 22
RETRY_S = 60.0
STORED = frozenset({ErrorCode.none, ErrorCode.duplicate_sequence_number})
FENCED = frozenset(
    {
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_producer_epoch,
    }
)


class Librdkafka(ChurnThread):
    """librdkafka's, one request in flight at a time, few records in each.

    On a topic that is made anew it may be silent for long: its leader epochs begin anew, and librdkafka (2.16) takes
    metadata with an epoch below one that it knows for outdated. What it holds back so is given up at ``timeout_ms``.
    Giving up, it begins a new producer epoch, and sends again under it what is under way to other partitions (its
    issue 4953): ``apart``, each partition has a producer of its own.
    """

    def __init__(
        self,
        world: World,
        name: str,
        names: Sequence[str],
        partitions: int,
        *,
        pause_s: float,
        timeout_ms: int,
        apart: bool = False,
    ) -> None:
        super().__init__(world, name)
        places = [(name, index) for index in range(partitions) for name in names]
        self._places = itertools.cycle(places)
        self._pause_s = pause_s
        config: dict[str, Any] = {
            **PRODUCER,
            "bootstrap.servers": world.cluster.bootstrap_servers,
            "batch.num.messages": MOST_AT_ONCE,
            "socket.timeout.ms": 10_000,
            "request.timeout.ms": 10_000,
            "message.timeout.ms": timeout_ms,
            "topic.metadata.propagation.max.ms": timeout_ms,
        }
        made = [confluent_kafka.Producer(config) for _ in (places if apart else places[:1])]
        self._producers = dict(zip(places, itertools.cycle(made)))

    def step(self) -> None:
        self.pause(self._pause_s)
        name, index = next(self._places)
        for _ in range(self.rng.randint(1, MOST_AT_ONCE)):
            self._send(name, index)
        for producer in {*self._producers.values()}:
            producer.poll(0)

    def _send(self, name: str, index: int) -> None:
        value = next(self.world.values)
        topics = self.world.topics

        def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            offset = message.offset()
            topics.settled(self.name, value, acked=error is None, offset=-1 if offset is None else offset)
            self.world.counts[f"{self.name}: acked" if error is None else f"{self.name}: {error.name()}"] += 1

        topics.sent_by_name(self.name, name, index, value)
        try:
            producer = self._producers[name, index]
            producer.produce(name, payload(value), partition=index, on_delivery=delivered)
        except (BufferError, confluent_kafka.KafkaException):  # no room, or it knows of no such partition at the moment
            topics.settled(self.name, value, acked=False)

    def end(self) -> None:
        for producer in {*self._producers.values()}:
            producer.flush(FLUSH_S)


class Ours(ChurnThread):
    """raylog's own."""

    def __init__(self, world: World, name: str, names: Sequence[str], partitions: int, *, pause_s: float) -> None:
        super().__init__(world, name)
        self._places = itertools.cycle([(name, index) for index in range(partitions) for name in names])
        self._pause_s = pause_s
        self._producer = Producer(
            world.cluster.bootstrap_servers,
            acks="all",
            enable_idempotence=True,
            linger_ms=0,
            batch_size=2_000,
            delivery_timeout_ms=MESSAGE_TIMEOUT_MS,
            request_timeout_ms=10_000,
        )

    def step(self) -> None:
        self.pause(self._pause_s)
        name, index = next(self._places)
        for _ in range(self.rng.randint(1, MOST_AT_ONCE)):
            self._send(name, index)

    def _send(self, name: str, index: int) -> None:
        value = next(self.world.values)
        topics = self.world.topics

        def delivered(delivery: Delivery) -> None:
            error = delivery.exception(0)
            offset = -1 if error is not None else delivery.result(0).offset
            topics.settled(self.name, value, acked=error is None, offset=offset)
            self.world.counts[f"{self.name}: acked" if error is None else f"{self.name}: {type(error).__name__}"] += 1

        topics.sent_by_name(self.name, name, index, value)
        try:
            self._producer.send(name, payload(value), partition=index).add_done_callback(delivered)
        except RaylogError as error:
            topics.settled(self.name, value, acked=False)
            self.world.counts[f"{self.name}: {type(error).__name__}"] += 1

    def end(self) -> None:
        try:
            self._producer.close(FLUSH_S)
        except RaylogError as error:
            self.world.fault(f"{self.name} does not close: {error}")


class ById(ChurnThread):
    """Byte by byte, by topic id: it is certain of the life of each topic that it sends to.

    It sends a batch of a few records, again and again until it knows what became of it, and then now and then once
    more: the repetition must be told the same offset, or that it is a repetition.
    """

    REPEATS = 0.2

    def __init__(self, world: World, name: str, names: Sequence[str], *, pause_s: float) -> None:
        super().__init__(world, name)
        self._names = frozenset(names)
        self._pause_s = pause_s
        self._producer_id = -1
        self._sequences: dict[int, int] = {}

    def step(self) -> None:
        self.pause(self._pause_s)
        if self._producer_id < 0 and not self._begin_anew():
            return
        logs = [log for log in self.world.topics.logs() if log.life.name in self._names]
        if logs:
            self._send(self.rng.choice(logs))

    def _begin_anew(self) -> bool:
        """Get a producer id; whether it was told one."""
        broker = self.rng.choice(sorted(self.world.up_since) or [0])
        try:
            answer = self.connections.ask(
                broker, INIT_PRODUCER_ID, 4, transactional_id=None, producer_id=-1, producer_epoch=-1
            )
        except Unanswered:
            return False
        self.world.judge_code(int(answer.error_code), "InitProducerId")
        if answer.error_code is not ErrorCode.none:
            return False
        self._producer_id, self._sequences = answer.producer_id, {}
        return True

    def _send(self, log: Log) -> None:
        values = [next(self.world.values) for _ in range(self.rng.randint(1, 4))]
        numbers = [self.world.topics.invoke(self.name, log, value) for value in values]
        sequence = self._sequences.get(log.number, 0)
        now_ms = time.time_ns() // 1_000_000
        batch = encode_batch(
            [Record(payload(value), timestamp=now_ms) for value in values],
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        code, offset = self._until_known(log, batch)
        if code in STORED:
            self._sequences[log.number] = sequence + len(values)
            self.world.counts[f"{self.name}: acked"] += len(values)
            if self.rng.random() < self.REPEATS:
                self._repeat(log, batch, offset)
        else:
            self._producer_id = -1  # what it has sent may be stored or not, and its sequence used or not
        for n, number in enumerate(numbers):
            known = {"offset": offset + n} if code in STORED and offset >= 0 else {}
            self.world.recorder.done(self.name, number, Type.OK if code in STORED else Type.INFO, "send", **known)

    def _until_known(self, log: Log, batch: bytes) -> tuple[ErrorCode, int]:
        """What became of the batch; the last error where nobody can tell any more."""
        deadline = time.monotonic() + RETRY_S
        code = ErrorCode.network_exception
        while time.monotonic() < deadline and not log.life.dropped and not self.world.stopping.is_set():
            broker = self.world.leader(log, self.connections)
            if broker is None:
                self.pause(0.05)
                continue
            try:
                code, offset = self._try(broker, log, batch)
            except Unanswered:
                self.world.counts[f"{self.name}: unanswered"] += 1
                self.pause(0.05)
                continue
            if code in STORED:
                return code, offset
            self.world.counts[f"{self.name}: {code.name}"] += 1
            if code in FENCED:
                if not log.life.dropped:
                    self.world.fault(f"{self.name}: {log} is refused its next sequence: {code.name}")
                break
            self.world.judge_code(code, f"Produce to {log}")
            self.pause(0.05)
        return code, -1

    def _try(self, broker: int, log: Log, batch: bytes) -> tuple[ErrorCode, int]:
        answer = self.connections.produce(broker, log, batch, timeout_ms=10_000)
        [topic] = answer.topics
        [part] = topic.partitions
        return ErrorCode(part.error_code), part.base_offset

    def _repeat(self, log: Log, batch: bytes, offset: int) -> None:
        broker = self.world.leader(log, self.connections)
        if broker is None:
            return
        try:
            code, again = self._try(broker, log, batch)
        except Unanswered:
            return
        self.world.counts[f"{self.name}: repeated"] += 1
        if code is ErrorCode.none and offset >= 0 and again != offset:
            self.world.fault(f"{self.name}: a batch of {log} acknowledged at {offset}, its repetition at {again}")
        elif code not in STORED:
            self.world.judge_code(code, f"the repetition of a batch to {log}")
