"""The clients' view: idempotent producers with acks=all, consumers, readers of ends. They believe what brokers say.

Each follows leadership as a real client does: it asks any broker for metadata, keeps what has the highest leader epoch
(KIP-320), and asks anew when a broker says that it is at the wrong place. None ever gives up on a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from raylog.protocol.errors import (
    DuplicateSequence,
    OutOfOrderSequence,
    RaylogError,
)
from raylog.protocol.ids import NO_LEADER, BrokerEpoch, BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition
from raylog.protocol.records import Record, encode_batch

from .disk import Stored, stored
from .engine import Engine, Process, Thread, Violation
from .invariants import Checker
from .network import Network

REQUEST_TIMEOUT_MS = 1_500
BACKOFFS_MS = (5, 20, 60, 100)


class ProduceRequest(NamedTuple):
    """Produce v13, which names the topic by its id."""

    tp: TopicPartition
    topic_id: TopicId
    batch: bytes
    timeout_ms: int


class ConsumeRequest(NamedTuple):
    """Fetch v13, which names the topic by its id."""

    tp: TopicPartition
    topic_id: TopicId
    offset: Offset
    leader_epoch: LeaderEpoch
    max_wait_ms: int


class Ends(NamedTuple):
    """The answer to a question for ends, by whom, and of which life of the topic: old clients cannot tell."""

    end: Offset
    who: tuple[BrokerId, BrokerEpoch]
    topic_id: TopicId


class EndsRequest(NamedTuple):
    tp: TopicPartition
    leader_epoch: LeaderEpoch


class Consumed(NamedTuple):
    data: bytes
    high_watermark: Offset


class OutOfRange(NamedTuple):
    """The answer to a fetch outside the log."""

    start: Offset
    error: RaylogError


class DeleteRequest(NamedTuple):
    """DeleteRecords: all before ``offset``, -1 for the high watermark."""

    tp: TopicPartition
    offset: Offset
    timeout_ms: int


class Leader(NamedTuple):
    broker: BrokerId
    epoch: LeaderEpoch
    topic_id: TopicId


class Client:
    """Finds leaders."""

    def __init__(
        self, number: int, engine: Engine, network: Network, brokers: Sequence[BrokerId], checker: Checker
    ) -> None:
        self.number = number
        self.engine = engine
        self.network = network
        self.brokers = brokers
        self.checker = checker
        self.thread = Thread(Process(f"client {number}"))
        self.stopped = False
        self.quiet_until = 0
        """Until then it sends nothing new."""
        self.topic_is_gone = False
        """What it was about is deleted: it asks for nothing more."""
        self._leaders: dict[TopicPartition, Leader] = {}
        self._asking = False

    def leader(self, tp: TopicPartition) -> Leader | None:
        found = self._leaders.get(tp)
        return found if found is not None and found.broker != NO_LEADER else None

    def call(self, target: BrokerId, kind: str, request: Any, done: Any) -> None:
        self.network.call(self.number, self.thread, target, kind, request, REQUEST_TIMEOUT_MS, done)

    def refresh(self) -> None:
        """Ask a broker, one after another, until it knows."""
        if self._asking:
            return
        self._asking = True
        self.call(self.engine.random.choice(self.brokers), "metadata", None, self._metadata)

    def _metadata(self, found: dict[TopicPartition, Leader] | None) -> None:
        self._asking = False
        for tp, leader in (found or {}).items():
            known = self._leaders.get(tp)
            if known is None or leader.topic_id != known.topic_id or leader.epoch >= known.epoch:
                self._leaders[tp] = leader  # of a topic that was made anew, epochs begin anew

    def backoff(self) -> int:
        return self.engine.random.choice(BACKOFFS_MS)


@dataclass(slots=True)
class Batch:
    """One batch of a producer, until it is acknowledged."""

    sequence: int
    end: int
    """The sequence after its last record."""
    data: bytes
    in_flight: bool = False
    attempts: int = 0


class Producer(Client):
    """Sends to one partition, in order, with up to ``max_in_flight`` requests under way."""

    def __init__(
        self, *client: Any, tp: TopicPartition, topic_id: TopicId, max_in_flight: int, interval_ms: int
    ) -> None:
        super().__init__(*client)
        self.tp = tp
        self.topic_id = topic_id
        self.acked = 0
        self._max_in_flight = max_in_flight
        self._interval_ms = interval_ms
        self._sequence = 0
        self._is_known = False
        """Whether brokers know it, as far as it can tell."""
        self._first = 0
        """The sequence that has to be acknowledged for that."""
        self._pending: deque[Batch] = deque()
        self.engine.at(self.number % 7, self.thread, self._produce)

    @property
    def is_done(self) -> bool:
        return not self._pending

    def _produce(self) -> None:
        if self.stopped:
            return
        if self.quiet_until > self.engine.now:
            self._is_known, self._first = False, self._sequence  # all its records may be deleted meanwhile
            self.engine.at(self.quiet_until - self.engine.now, self.thread, self._produce)
            return
        # A broker that does not know a producer takes any sequence for its first (KIP-360): so the first goes alone.
        if len(self._pending) < (self._max_in_flight if self._is_known else 1):
            count = 1 + (self._sequence % 3 == 0)
            records = [Record(value=b"%d" % (self._sequence + n), timestamp=0) for n in range(count)]
            data = encode_batch(records, producer_id=self.number, producer_epoch=0, base_sequence=self._sequence)
            batch = Batch(self._sequence, self._sequence + count, data)
            self._sequence += count
            self._pending.append(batch)
            self._send(batch)
        self.engine.at(1 + self.engine.random.randrange(2 * self._interval_ms), self.thread, self._produce)

    def _send(self, batch: Batch) -> None:
        if self.topic_is_gone:
            return
        leader = self.leader(self.tp)
        if leader is None:
            self.refresh()
            self.engine.at(self.backoff(), self.thread, lambda: self._send(batch))
            return
        is_first = batch is self._pending[0]
        if not is_first and not self._is_known:  # sent before, when it was, and since then all may have been deleted
            self.engine.at(self.backoff(), self.thread, lambda: self._send(batch))
            return
        batch.attempts += 1

        def done(answer: Offset | RaylogError | None) -> None:
            self._answered(batch, answer, is_first=is_first)

        self.call(leader.broker, "produce", ProduceRequest(self.tp, self.topic_id, batch.data, 1_000), done)

    def _answered(self, batch: Batch, answer: Offset | RaylogError | None, *, is_first: bool) -> None:
        if not any(batch is each for each in self._pending):
            return
        match answer:
            case int():
                self.checker.heard_ack(self.tp, self.topic_id, answer, self.number, batch.sequence)
                self._settle(batch)
            case DuplicateSequence():
                self.checker.heard_duplicate(self.tp, self.topic_id, self.number, batch.sequence, batch.end)
                self._settle(batch)
            case OutOfOrderSequence() if is_first:
                raise Violation(
                    "exactly once, in order",
                    f"{self.tp}: OUT_OF_ORDER_SEQUENCE for sequence {batch.sequence} of producer {self.number}, "
                    f"though all before it was acknowledged when it was sent",
                )
            case _:
                self.refresh()
                self.engine.at(self.backoff(), self.thread, lambda: self._send(batch))

    def _settle(self, batch: Batch) -> None:
        self._pending.remove(batch)
        self.acked += 1
        self._is_known |= batch.sequence >= self._first


class Consumer(Client):
    """Reads its partitions from the beginning, and checks that it misses nothing and sees nothing twice."""

    def __init__(self, *client: Any, tps: Sequence[TopicPartition], topic_id: TopicId) -> None:
        super().__init__(*client)
        self.topic_id = topic_id
        self.positions: dict[TopicPartition, Offset] = {}
        for index, tp in enumerate(tps):
            self.read(tp, 11 + index)

    def read(self, tp: TopicPartition, delay: int = 1) -> None:
        """Read another one, too."""
        self.positions[tp] = Offset(0)
        self.engine.at(delay, self.thread, partial(self._fetch, tp))

    def _fetch(self, tp: TopicPartition) -> None:
        if self.stopped or self.topic_is_gone:
            return
        leader = self.leader(tp)
        if leader is None:
            self.refresh()
            self._again(tp)
            return
        request = ConsumeRequest(tp, self.topic_id, self.positions[tp], leader.epoch, 500)
        # Any replica serves consumers, below its own high watermark (KIP-392).
        at = self.engine.random.choice(self.brokers) if self.engine.chance(0.2) else leader.broker
        told = self.checker.of(tp, self.topic_id).deleted
        self.call(at, "consume", request, partial(self._fetched, tp, told))

    def _again(self, tp: TopicPartition) -> None:
        self.engine.at(self.backoff(), self.thread, lambda: self._fetch(tp))

    def _fetched(self, tp: TopicPartition, told: int, answer: Consumed | OutOfRange | RaylogError | None) -> None:
        match answer:
            case Consumed(data, _):
                for batch in split(data):
                    if batch.end <= self.positions[tp]:
                        continue
                    self.checker.consumed(tp, self.topic_id, self.positions[tp], batch)
                    self.positions[tp] = Offset(batch.end)
                self.engine.at(1, self.thread, lambda: self._fetch(tp))
            case OutOfRange(start, _):
                self.checker.out_of_range(tp, self.topic_id, self.positions[tp], start, told)
                self.positions[tp] = start
                self._again(tp)
            case _:
                self.refresh()
                self._again(tp)


def split(data: bytes) -> list[Stored]:
    """The whole batches in what a fetch answered."""
    found, position = [], 0
    while position < len(data):
        batch = stored(data[position:])
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        found.append(batch._replace(data=data[position : position + size]))
        position += size
    return found


class EndReader(Client):
    """Asks for the latest offsets: they must never go back (KIP-207)."""

    def __init__(self, *client: Any, tps: Sequence[TopicPartition], interval_ms: int = 60) -> None:
        super().__init__(*client)
        self._tps = tps
        self._interval_ms = interval_ms
        self.engine.at(17, self.thread, self._ask)

    def _ask(self) -> None:
        if self.stopped:
            return
        tp = self.engine.random.choice(self._tps)
        leader = self.leader(tp)
        if leader is None or self.engine.chance(0.1):
            self.refresh()
        else:
            asked = self.checker.partitions[tp]
            floor, since = asked.known_end, self.engine.now

            def done(answer: Ends | RaylogError | None) -> None:
                if isinstance(answer, Ends):
                    self.checker.heard_end(tp, answer.topic_id, answer.end, answer.who, asked, floor, since)
                else:
                    self.refresh()

            # An old client names no epoch: then nothing but the lease keeps a zombie from answering.
            epoch = leader.epoch if self.engine.chance(0.5) else LeaderEpoch(-1)
            self.call(leader.broker, "ends", EndsRequest(tp, epoch), done)
        self.engine.at(1 + self.engine.random.randrange(2 * self._interval_ms), self.thread, self._ask)
