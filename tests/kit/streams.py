"""Kafka clients that write numbers to partition 0 and read them back for as long as a test lasts, with acks=all and
idempotence, and without a group.

with ConfluentStream(servers, "t") as stream:
    …                                  # whatever must not matter
    stream.finish()
assert (stream.read, stream.errors) == (stream.expected, [])

Each runs with its own defaults for all that has to do with retries and with what it knows of leaders.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import ClassVar, Self

import aiokafka
import confluent_kafka
import kafka

from kit.machine import scaled
from kit.waiting import wait_until

__all__ = [
    "AioKafkaStream",
    "ConfluentStream",
    "KafkaPythonStream",
    "KcatStream",
    "ProgramStream",
    "Stream",
    "feed",
    "go_on",
]

PAUSE_S = 0.03
"""Between two records: several clients share the machine with the brokers."""
WAIT_S = 120.0


class Stream(ABC):
    """One client's producer and consumer, each in a thread of its own. Record ``n`` of the topic is the number n."""

    name: ClassVar[str]
    knows_racks: ClassVar[bool] = True
    """Whether its consumer can be told its rack (KIP-392)."""
    leaves_lost_replicas: ClassVar[bool] = True
    """Whether its consumer turns to the leader when the replica that it was sent to has gone."""

    def __init__(self, servers: str, topic: str, *, rack: str = "") -> None:
        self.servers = servers
        self.topic = topic
        self.rack = rack
        self.sent = 0
        """How many numbers were handed to the client."""
        self.acked = 0
        """How many of them the client told to be written."""
        self.read: list[tuple[int, int]] = []
        """Offset and number of each record, as they were read."""
        self.errors: list[str] = []
        """Sends that were given up, errors that the consumer raised."""
        self._all_sent = threading.Event()
        self._all_read = threading.Event()
        self._writer = threading.Thread(target=self._run, args=(self._write,), name=f"{topic} writes")
        self._reader = threading.Thread(target=self._run, args=(self._read,), name=f"{topic} reads")

    def __enter__(self) -> Self:
        self._writer.start()
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._writer.join(scaled(WAIT_S))
        self._reader.join(scaled(WAIT_S))
        assert not self._writer.is_alive(), f"{self.name} still writes"
        assert not self._reader.is_alive(), f"{self.name} still reads"

    def finish(self) -> None:
        """Write no more, and wait until what was sent is acknowledged and read, or an error is known."""
        self._all_sent.set()
        self._writer.join(scaled(WAIT_S))
        sent = self.sent
        wait_until(lambda: self.is_beyond(sent - 1), WAIT_S, f"{self.name} has written and read {sent} records")

    @property
    def expected(self) -> list[tuple[int, int]]:
        """What must have been read, if everything was acknowledged."""
        return [(number, number) for number in range(self.sent)]

    def is_beyond(self, count: int) -> bool:
        """Whether more than the first ``count`` records are acknowledged and read, or it failed."""
        return bool(self.errors) or min(self.acked, len(self.read)) > count

    def __repr__(self) -> str:
        return f"<{self.name}: sent {self.sent}, acked {self.acked}, read {len(self.read)}, errors {self.errors[:3]}>"

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 (whatever a client raises is what the test is about)
            self.errors.append(repr(error))

    def _end(self) -> None:
        """Let both threads end."""
        self._all_sent.set()
        self._all_read.set()

    @abstractmethod
    def _write(self) -> None:
        """Send :meth:`_numbers` and wait until they are acknowledged."""

    @abstractmethod
    def _read(self) -> None:
        """Read from offset 0 on until ``_all_read``; a consumer that would begin elsewhere raises."""

    def _numbers(self) -> Iterator[bytes]:
        while not self._all_sent.wait(PAUSE_S):
            number, self.sent = self.sent, self.sent + 1
            yield b"%d" % number

    def _note(self, error: object = None) -> None:
        """What became of a send."""
        if error is None:
            self.acked += 1
        else:
            self.errors.append(f"{error}")

    def _take(self, offset: int | None, value: object) -> None:
        assert isinstance(value, (bytes, str))
        self.read.append((-1 if offset is None else offset, int(value)))


class ConfluentStream(Stream):
    """confluent-kafka over librdkafka."""

    name = "confluent-kafka"

    def _write(self) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.servers, "enable.idempotence": True})
        for number in self._numbers():
            producer.produce(self.topic, number, partition=0, on_delivery=lambda error, _: self._note(error))
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0

    def _read(self) -> None:
        config = {
            "bootstrap.servers": self.servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "client.rack": self.rack,
        }
        consumer = confluent_kafka.Consumer(config)
        try:
            consumer.assign([confluent_kafka.TopicPartition(self.topic, 0, 0)])
            while not self._all_read.is_set():
                for message in consumer.consume(100, 0.1):
                    assert message.error() is None, message.error()
                    self._take(message.offset(), message.value())
        finally:
            consumer.close()


class KafkaPythonStream(Stream):
    """kafka-python, whose producer is idempotent and waits for all by default.

    Its consumer, sent to a replica that it does not know, asks the leader again and again until its metadata is
    refreshed for another reason, after five minutes by default.
    """

    name = "kafka-python"
    REFRESH_MS = 1_000

    def _write(self) -> None:
        producer = kafka.KafkaProducer(bootstrap_servers=self.servers.split(","))
        try:
            for number in self._numbers():
                sent = producer.send(self.topic, number, partition=0)
                sent.add_callback(lambda _: self._note())
                sent.add_errback(self._note)
            producer.flush(WAIT_S)
        finally:
            producer.close()

    def _read(self) -> None:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.servers.split(","),
            group_id=None,
            auto_offset_reset="none",
            client_rack=self.rack,
            **({"metadata_max_age_ms": self.REFRESH_MS} if self.rack else {}),
        )
        try:
            partition = kafka.TopicPartition(self.topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            while not self._all_read.is_set():
                for records in consumer.poll(timeout_ms=100).values():
                    for record in records:
                        self._take(record.offset, record.value)
        finally:
            consumer.close()


class AioKafkaStream(Stream):
    """aiokafka, which knows no racks."""

    name = "aiokafka"
    knows_racks = False

    def _write(self) -> None:
        async def send() -> None:
            producer = aiokafka.AIOKafkaProducer(bootstrap_servers=self.servers.split(","), enable_idempotence=True)
            await producer.start()
            try:
                numbers = self._numbers()
                while (number := await asyncio.to_thread(next, numbers, None)) is not None:
                    sent = await producer.send(self.topic, number, partition=0)
                    sent.add_done_callback(lambda done: self._note(done.exception()))
                await producer.flush()
            finally:
                await producer.stop()

        asyncio.run(send())

    def _read(self) -> None:
        async def receive() -> None:
            consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self.servers.split(","), auto_offset_reset="none")
            await consumer.start()
            try:
                partition = aiokafka.TopicPartition(self.topic, 0)
                consumer.assign([partition])
                consumer.seek(partition, 0)
                while not self._all_read.is_set():
                    for records in (await consumer.getmany(timeout_ms=100)).values():
                        for record in records:
                            self._take(record.offset, record.value)
            finally:
                await consumer.stop()

        asyncio.run(receive())


class ProgramStream(Stream):
    """A client that is a program, or two: started with the stream, killed at its end."""

    def __enter__(self) -> Self:
        self._programs = self._start()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            for program in self._programs:
                with program:  # waits for its end, and closes its pipes
                    program.kill()

    def _end(self) -> None:
        super()._end()
        for program in self._programs:
            program.kill()

    @abstractmethod
    def _start(self) -> list[subprocess.Popen[str]]:
        """The programs, started."""


class KcatStream(ProgramStream):
    """kcat: one that writes the lines of its stdin and tells on stderr what became of each, and one that reads.

    Its librdkafka, 2.0.2, keeps to the replica that it was sent to for five minutes, whatever becomes of it.
    """

    name = "kcat"
    leaves_lost_replicas = False
    WIDTH = 200
    """Of a line, in bytes: it takes its input some kilobytes at a time, and so records must not be short."""

    def _start(self) -> list[subprocess.Popen[str]]:
        where = ["-b", self.servers, "-t", self.topic, "-p", "0"]
        write = ["kcat", "-P", "-vvv", "-X", "enable.idempotence=true", *where]
        read = ["kcat", "-C", "-q", "-u", "-o", "0", "-f", "%o %s\n", "-X", "auto.offset.reset=error", *where]
        if self.rack:
            read += ["-X", f"client.rack={self.rack}"]
        return [
            subprocess.Popen(write, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1),
            subprocess.Popen(read, stdout=subprocess.PIPE, text=True),
        ]

    def _write(self) -> None:
        program = self._programs[0]
        assert program.stderr is not None
        feeder = threading.Thread(target=feed, args=(program, (number.zfill(self.WIDTH) for number in self._numbers())))
        feeder.start()
        for line in program.stderr:
            if line.startswith("% Message delivered"):
                self._note()
            elif "elivery failed" in line or "terminating" in line:
                self._note(line.strip())
        feeder.join(scaled(WAIT_S))
        if (code := program.wait(scaled(WAIT_S))) != 0:
            self._note(f"the kcat that writes ended with {code}")

    def _read(self) -> None:
        program = self._programs[1]
        assert program.stdout is not None
        for line in program.stdout:
            offset, number = line.split()
            self._take(int(offset), number)
        if not self._all_read.is_set():
            self._note(f"the kcat that reads ended with {program.wait(scaled(WAIT_S))}")


def feed(program: subprocess.Popen[str], lines: Iterable[bytes]) -> None:
    """Write lines to the program's stdin, and close it; a program that has ended says itself why."""
    assert program.stdin is not None
    with contextlib.suppress(BrokenPipeError), program.stdin as stdin:
        for line in lines:
            stdin.write(line.decode() + "\n")
            stdin.flush()


def go_on(streams: Sequence[Stream], count: int = 20) -> None:
    """Until each has written so many records more than were sent by now, and read them; else who could not is told."""
    marks = [(stream, stream.sent + count) for stream in streams]
    wait_until(
        lambda: all(stream.is_beyond(mark) for stream, mark in marks),
        WAIT_S,
        "every client goes on",
        instead=lambda: f"wanted more than: {marks}",
    )
