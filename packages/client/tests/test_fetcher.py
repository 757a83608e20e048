"""Brokers are asked for exactly what a consumer wants now, at a cost that depends on what changed."""

from __future__ import annotations

import random
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from kit.interrupts import Interrupt
from kit.steps import steps
from kit.wire import entity
from raylog.client.fetch import fetch_plan
from raylog.client.fetch.consumer_config import consumer_settings
from raylog.client.fetch.epoch_checks import EpochQuestion
from raylog.client.fetch.fetch_state import PartitionBuffer
from raylog.client.fetch.fetcher import FETCH_VERSION, Fetcher
from raylog.client.fetch.offset_searches import OffsetQuestion
from raylog.client.fetch.subscription import Subscription
from raylog.client.network.connection import Address, Reply, Request
from raylog.client.network.metadata import Metadata
from raylog.client.network.network import Network
from raylog.protocol.errors import NetworkException, RaylogError, UnsupportedVersion
from raylog.protocol.ids import EARLIEST, PartitionIndex, TopicId, TopicName, TopicPartition
from raylog.protocol.records import Record, encode_batch
from raylog.protocol.wire.fetch import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchResponse,
    encode_fetch_response,
    parse_fetch_request,
)
from raylog.protocol.wire.messages import encode_response, response_type

MAX_BYTES = 1_000
BROKERS = (1, 2, 3)
LIST_OFFSETS = 8
TOPIC_ID = TopicId(UUID(int=1))
METADATA_MS = 1_000
"""Within which metadata is asked for that is needed."""


def tp_of(index: int) -> TopicPartition:
    return TopicPartition(TopicName("t"), PartitionIndex(index))


class Wire:
    """A network and its pool: brokers with fetch sessions, whose answers the test gives."""

    def __init__(self, count: int) -> None:
        self.metadata = Metadata(["t"].copy)
        self.pool = self.log = self
        self.client_id = "c"
        self.leaders = [(BROKERS[index % len(BROKERS)], 0) for index in range(count)]
        self.ends = [0] * count
        self.topic_id: TopicId | None = TOPIC_ID
        self.down: set[Address] = set()
        self.sessions: dict[Address, dict[TopicPartition, FetchPartition]] = {}
        self.fetches: dict[Address, Any] = {}
        """The context of each fetch that waits for its answer."""
        self.questions: list[Any] = []
        self.replies: list[Reply] = []
        self.interrupt = ""
        """Ctrl-C comes in this call."""
        self.arrived: list[Address] = []
        """Whom fetches came to since the test looked."""
        self.tell_leaders()

    # --- the network's ports ---

    def info(self, *_: object) -> None: ...

    def ready(self, address: Address) -> bool:
        return address not in self.down

    def reachable(self, broker: int) -> Address | None:
        return None if at(broker) in self.down else at(broker)

    def leader_address(self, tp: TopicPartition) -> Address | None:
        broker = self.metadata.view.leader_of(tp)[0]
        if broker < 0:
            self.metadata.need_update()
        return at(broker) if broker >= 0 else None

    def send(self, address: Address, *args: Any, timeout_ms: int | None = None) -> None:
        *_, context = args
        if len(args) == 2:  # the network's own
            self.questions.append(context)
            return
        api_key, version, build, _ = args
        assert (api_key, version) == (1, FETCH_VERSION)
        assert address not in self.fetches, "one at a time"
        self._take_fetch(address, b"".join(build(7)))
        self.fetches[address] = context
        self.arrived.append(address)
        self._may_interrupt("send")

    def poll(self, timeout_ms: float) -> list[Reply]:
        self._may_interrupt("poll")
        replies, self.replies = self.replies, []
        return replies

    def wait_ms(self, timeout_ms: float) -> float:
        return timeout_ms

    def reset(self) -> None:
        self.fetches.clear()
        self.questions.clear()
        self.replies.clear()

    # --- the brokers ---

    def _may_interrupt(self, call: str) -> None:
        if self.interrupt == call:
            self.interrupt = ""
            raise KeyboardInterrupt

    def tell_leaders(self) -> None:
        """The metadata of now comes."""
        partitions = tuple(
            {"partition_index": index, "leader_id": leader, "leader_epoch": epoch, "replica_nodes": (), "isr_nodes": ()}
            for index, (leader, epoch) in enumerate(self.leaders)
        )
        topic = {"name": "t", "topic_id": self.topic_id, "partitions": partitions}
        brokers = tuple({"node_id": broker, "host": "h", "port": broker} for broker in BROKERS)
        self.metadata.request()
        self.metadata.on_response(entity(response_type(3, 12), {"brokers": brokers, "topics": (topic,)}), 0)

    def _take_fetch(self, address: Address, frame: bytes) -> None:
        request = parse_fetch_request(FETCH_VERSION, frame[16:])
        if request.session_epoch == 0:
            self.sessions[address] = {}
        session = self.sessions[address]
        for forgotten in request.forgotten:
            for index in forgotten.partitions:
                del session[tp_of(index)]
        session.update({tp_of(wanted.partition): wanted for topic in request.topics for wanted in topic.partitions})

    def answer(self, address: Address) -> None:
        """The fetch that waits there: with what is new in the partitions that it leads."""
        found = [answer for wanted in self.sessions[address].values() if (answer := self._found(address, wanted))]
        topics = [FetchedTopic("", TOPIC_ID, found)] if found else []
        response = FetchResponse(topics, session_id=address.port)
        parts = encode_fetch_response(FETCH_VERSION, 7, response)
        self._reply(self.fetches.pop(address), (1, FETCH_VERSION), b"".join(parts))

    def _found(self, address: Address, wanted: FetchPartition) -> FetchedPartition[bytes] | None:
        index, offset = wanted.partition, wanted.fetch_offset
        leader, epoch = self.leaders[index]
        end = self.ends[index]
        if at(leader) != address or epoch != wanted.current_leader_epoch:
            return FetchedPartition(index, ErrorCode.not_leader_or_follower.value)
        if offset > end:
            return FetchedPartition(index, ErrorCode.offset_out_of_range.value)
        if offset == end:
            return None
        batch = encode_batch([Record(b"v")] * (end - offset), base_offset=offset, leader_epoch=epoch)
        return FetchedPartition(index, 0, end, end, 0, batch)

    def answer_question(self) -> None:
        """The oldest."""
        context = self.questions.pop(0)
        if isinstance(context, EpochQuestion):
            partitions = tuple(
                {"partition": tp.partition, "leader_epoch": asked.epoch, "end_offset": self.ends[tp.partition]}
                for tp, asked in context.asked.items()
            )
            self._answer(context, (23, 4), {"topics": ({"topic": "t", "partitions": partitions},)})
        else:
            asked = cast(OffsetQuestion, context)
            partitions = tuple(
                {"partition_index": tp.partition, "offset": 0 if asked.end == EARLIEST else self.ends[tp.partition]}
                for tp in asked.generations
            )
            self._answer(context, (2, LIST_OFFSETS), {"topics": ({"name": "t", "partitions": partitions},)})

    def _answer(self, context: object, api: tuple[int, int], values: dict[str, Any]) -> None:
        self._reply(context, api, encode_response(*api, 7, entity(response_type(*api), values)))

    def _reply(self, context: object, api: tuple[int, int], frame: bytes, error: RaylogError | None = None) -> None:
        self.replies.append(Reply(Request(*api, 7, context, 0, 0), memoryview(frame), error))

    def lose(self, address: Address) -> None:
        """The connection, with the fetch that waits there; the broker forgets the session."""
        self._reply(self.fetches.pop(address), (1, FETCH_VERSION), b"", NetworkException(f"{address} is gone"))
        self.sessions.pop(address)


def at(broker: int) -> Address:
    return Address("h", broker)


class World:
    """A consumer's fetcher, whose user takes all that is here."""

    def __init__(self, count: int) -> None:
        self.wire = Wire(count)
        self.count = count
        self.subscription = Subscription(EARLIEST)
        settings = consumer_settings("h:1", {"retry_backoff_ms": 0, "max_partition_fetch_bytes": MAX_BYTES})
        self.fetcher = Fetcher(
            settings, cast(Network, self.wire), self.subscription, None, None, lambda buffer: not buffer.place.paused
        )
        self.subscription.assign(map(tp_of, range(count)))

    def exchange(self) -> None:
        """And all that has to be asked for is asked for then."""
        self.wire.arrived.clear()
        is_news = bool(self.wire.replies)
        try:
            self.fetcher.exchange(0)
        except KeyboardInterrupt:
            return
        if is_news:
            return  # what was sent, was before it
        wanted = self._wanted()
        for address in self.wire.arrived:
            assert self.wire.sessions[address] == wanted.get(address, {}), address

    def settle(self) -> None:
        """Until all was answered, and taken, again and again: everything is read."""
        for _ in range(12):
            if self.wire.metadata.due_in_ms(0) < METADATA_MS:
                self.wire.tell_leaders()
            while self.wire.questions:
                self.wire.answer_question()
            for address in [*self.wire.fetches]:
                self.wire.answer(address)
            self.exchange()
            self.take()
            self.exchange()
        wanted = self._wanted()
        assert {a: self.wire.sessions[a] for a in self.wire.fetches} == wanted, "nobody waits to be asked for"
        ends = {place.tp: self.wire.ends[place.tp.partition] for place in self.subscription if not place.paused}
        assert {place.tp: place.position for place in self.subscription if not place.paused} == ends

    def take(self) -> None:
        for buffer in [*self.fetcher.filled.values()]:
            while not buffer.place.paused and not buffer.is_void and (records := buffer.peek(100, [])):
                buffer.place.move(buffer.generation, records[-1].offset + 1)

    def _wanted(self) -> dict[Address, dict[TopicPartition, FetchPartition]]:
        """What has to be asked of each broker, found from nothing."""
        found: dict[Address, dict[TopicPartition, FetchPartition]] = {}
        for place in self.subscription:
            if place.position is None or place.paused:
                continue
            buffer = self.fetcher.buffers[place.tp]
            assert (buffer.place, buffer.generation) == (place, place.generation)
            leader, epoch = self.wire.metadata.view.leader_of(place.tp)
            if buffer.wants_more() and not self.fetcher._epochs.needed(buffer):
                asked = FetchPartition(place.tp.partition, buffer.fetch_offset, MAX_BYTES, epoch)
                found.setdefault(at(leader), {})[place.tp] = asked
        return found


def step(world: World, chance: random.Random) -> None:
    """Something happens."""
    wire, subscription = world.wire, world.subscription
    index = chance.randrange(world.count)
    place = subscription.get(tp_of(index))
    waiting = [*wire.fetches]
    match chance.randrange(13):
        case 0 | 1:
            wire.ends[index] += chance.randint(1, 3)
        case 2 | 3 if waiting:
            wire.answer(chance.choice(waiting))
        case 4 if waiting:
            wire.lose(chance.choice(waiting))
        case 5 if place is not None:
            place.seek(chance.randint(0, wire.ends[index] + 1))
        case 6 if place is not None:
            place.seek_to(EARLIEST)
        case 7 if place is not None:
            place.paused = not place.paused
        case 8:
            subscription.assign(tp_of(n) for n in range(world.count) if chance.random() < 0.7)
        case 9:
            wire.leaders[index] = (chance.choice(BROKERS), wire.leaders[index][1] + 1)
            if chance.random() < 0.5:
                wire.tell_leaders()
        case 10 if wire.questions:
            wire.answer_question()
        case 11:
            world.take()
        case 12:
            wire.interrupt = chance.choice(("", "", "poll", "send"))


@pytest.mark.parametrize("seed", range(40))
def test_brokers_are_asked_for_exactly_what_is_wanted(seed: int) -> None:
    chance = random.Random(seed)
    world = World(6)
    for _ in range(150):
        step(world, chance)
        if chance.random() < 0.7:
            world.exchange()
        if chance.random() < 0.05:
            world.settle()


def test_a_full_partition_is_asked_for_again_once_it_was_read() -> None:
    world = World(1)
    world.settle()
    for _ in range(2):
        world.wire.ends[0] += 1
        world.wire.answer(at(1))
        world.fetcher.exchange(0)
        world.fetcher.exchange(0)
    assert world.wire.fetches == {}
    world.take()
    world.fetcher.exchange(0)
    assert [*world.wire.fetches] == [at(1)]


def filled(world: World) -> PartitionBuffer:
    """Of partition 0: an answer is there that the user has not taken."""
    world.settle()
    world.wire.ends[0] += 1
    world.wire.answer(at(1))
    world.fetcher.exchange(0)
    buffer = world.fetcher.filled[tp_of(0)]
    assert buffer.held_bytes()
    return buffer


@pytest.mark.parametrize("is_kept", [False, True])
def test_dropped_buffer_holds_nothing(is_kept: bool) -> None:
    """The session that it was asked in may know it for as long as the consumer lives."""
    world = World(1)
    buffer = filled(world)
    if is_kept:
        world.subscription[tp_of(0)].seek(0)
    else:
        world.subscription.assign([])
    world.fetcher.exchange(0)
    assert world.fetcher.buffers.get(tp_of(0)) is not buffer
    assert (buffer.held_bytes(), buffer.has_data()) == (0, False)


def test_interrupted_drop_leaves_nothing_filled() -> None:
    """What is filled counts for fetch.max.bytes."""
    for nth in range(30):
        world = World(1)
        filled(world)
        world.subscription.assign([])
        with Interrupt(nth, fetch_plan):
            world.exchange()
        world.exchange()
        assert (world.fetcher.buffers, world.fetcher.filled) == ({}, {}), nth


def test_topic_without_id_is_told_and_not_fetched() -> None:
    """Brokers from before KIP-516 answer a fetch by no id with an error for each partition, again and again."""
    world = World(3)
    world.wire.topic_id = None
    world.wire.tell_leaders()
    for _ in range(5):
        world.fetcher.exchange(0)
        while world.wire.questions:
            world.wire.answer_question()
    assert world.wire.fetches == {}
    assert isinstance(error := world.fetcher.complaints.next(), UnsupportedVersion)
    assert "topic t" in str(error)
    assert world.fetcher.complaints.next() is None
    world.wire.topic_id = TOPIC_ID
    world.wire.tell_leaders()
    world.settle()


def read_one(world: World) -> None:
    """A record comes in one partition, and is taken."""
    world.wire.ends[0] += 1
    world.wire.answer(at(1))
    world.fetcher.exchange(0)
    world.fetcher.exchange(0)
    world.take()


@pytest.mark.parametrize("count", [30, 1_500])
def test_partitions_in_which_nothing_happens_cost_nothing(count: int) -> None:
    few, many = World(3), World(count)
    costs = []
    for world in (few, many):
        world.settle()
        read_one(world)
        costs.append(steps(lambda: read_one(world), of="raylog"))  # noqa: B023
    assert costs[1] <= costs[0] * 1.1, costs
