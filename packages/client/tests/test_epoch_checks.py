"""Is what a consumer read still in the leader's log? Each answer that a leader can give, and what happens meanwhile."""

from __future__ import annotations

import logging
from typing import cast

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderEpochRequest
from kio.static.protocol import RequestPayload

from kit.wire import entity
from raylog.client.fetch.epoch_checks import EpochChecks, EpochQuestion
from raylog.client.fetch.fetch_state import PartitionBuffer
from raylog.client.fetch.subscription import Place, Subscription
from raylog.client.network.connection import Address, Reply, Request
from raylog.client.network.metadata import Metadata
from raylog.client.network.network import Network
from raylog.client.read_errors import LogTruncated
from raylog.protocol.errors import NetworkException, RaylogError, TopicAuthorizationFailed, UnsupportedVersion
from raylog.protocol.ids import EARLIEST, LATEST, PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import Record, encode_batch
from raylog.protocol.wire.messages import encode_response, response_type
from raylog.protocol.wire.primitives import ZERO_UUID

API_KEY, VERSION = 23, 4
TP = TopicPartition(TopicName("t"), PartitionIndex(0))
LEADER = Address("h", 9)


class Wire:
    """A network that one broker is at the other end of: what was sent to it, and no more."""

    def __init__(self) -> None:
        self.metadata = Metadata(["t"].copy)
        self.is_ready = True
        self.sent: list[tuple[OffsetForLeaderEpochRequest, EpochQuestion]] = []

    def ready(self, address: Address) -> bool:
        assert address == LEADER
        return self.is_ready

    def send(self, address: Address, message: RequestPayload, context: object) -> None:
        assert address == LEADER
        self.sent.append((cast(OffsetForLeaderEpochRequest, message), cast(EpochQuestion, context)))


class Reader:
    """A consumer of ``t-0`` that has come to ``position``, behind a batch of ``epoch``; broker 1 leads in epoch 2."""

    def __init__(self, *, position: int = 5, epoch: int = 1, reset: int | None = LATEST) -> None:
        self.wire = Wire()
        self.complaints: list[RaylogError] = []
        self.resting: list[TopicPartition] = []
        subscription = Subscription(reset)
        subscription.assign([TP])
        self.place: Place = subscription[TP]
        self.place.seek(position, epoch)
        self.buffers: dict[TopicPartition, PartitionBuffer] = {}
        self.checks = EpochChecks(
            cast(Network, self.wire),
            subscription,
            self.buffers,
            lambda _, error: self.complaints.append(error),
            self.resting.append,
        )
        self.begin()
        self.leads_in(2)

    def begin(self) -> None:
        """A buffer for where the place is now, as the fetcher makes it."""
        self.buffers[TP] = PartitionBuffer(self.place, None, None, check_crcs=True)

    @property
    def buffer(self) -> PartitionBuffer:
        return self.buffers[TP]

    def needed(self) -> bool:
        return self.checks.needed(self.buffer)

    def leads_in(self, epoch: int) -> None:
        partition = {"partition_index": 0, "leader_id": 1, "leader_epoch": epoch, "replica_nodes": (), "isr_nodes": ()}
        topic = {"name": "t", "topic_id": ZERO_UUID, "partitions": (partition,)}
        response = {"brokers": ({"node_id": 1, "host": "h", "port": 9},), "topics": (topic,)}
        self.wire.metadata.request()
        self.wire.metadata.on_response(entity(response_type(3, 12), response), 0)

    def ask(self) -> bool:
        return self.checks.ask({LEADER: [self.buffer]})

    def answer(self, end: int, *, epoch: int = 1, error: ErrorCode = ErrorCode.none, question: int = -1) -> None:
        """To the last question, or to an earlier one."""
        partition = {"partition": 0, "leader_epoch": epoch, "end_offset": end, "error_code": error}
        topics = ({"topic": "t", "partitions": (partition,)},)
        frame = encode_response(API_KEY, VERSION, 1, entity(response_type(API_KEY, VERSION), {"topics": topics}))
        self.take(frame=frame, question=question)

    def take(self, *, frame: bytes = b"", error: RaylogError | None = None, question: int = -1) -> None:
        context = self.wire.sent[question][1]
        self.checks.take(Reply(Request(API_KEY, VERSION, 1, context, 0, 0), memoryview(frame), error), context)

    def fetches_ahead(self, count: int, epoch: int) -> None:
        first = self.buffer.fetch_offset
        data = encode_batch([Record(b"v")] * count, base_offset=first, leader_epoch=epoch)
        self.buffer.add(data, first + count)

    def wants_metadata(self) -> bool:
        return self.wire.metadata.due_in_ms(1_000) == 0


def test_only_a_newer_leader_is_asked() -> None:
    reader = Reader(epoch=2)
    assert not reader.needed()
    reader.leads_in(3)
    assert reader.needed()
    assert not Reader(epoch=-1).needed()  # nobody said in which epoch it was written: there is nothing to compare


def test_it_asks_once_in_the_epochs_that_it_knows() -> None:
    reader = Reader()
    assert not reader.ask()
    assert not reader.ask()
    [(request, _)] = reader.wire.sent
    [topic] = request.topics
    [asked] = topic.partitions
    assert (request.replica_id, topic.topic, asked.partition) == (-1, "t", 0)
    assert (asked.current_leader_epoch, asked.leader_epoch) == (2, 1)


def test_it_asks_once_the_leader_can_be_reached() -> None:
    reader = Reader()
    reader.wire.is_ready = False
    assert reader.ask()
    assert not reader.wire.sent
    reader.wire.is_ready = True
    assert not reader.ask()
    assert len(reader.wire.sent) == 1


@pytest.mark.parametrize("end", [5, 6, 1_000])
def test_a_log_that_has_it_is_read_on(end: int, caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader()
    reader.ask()
    reader.answer(end)
    assert not reader.needed()
    assert (reader.place.position, reader.place.generation) == (5, reader.buffer.generation)
    assert not caplog.messages


@pytest.mark.parametrize("reset", [EARLIEST, LATEST])
def test_where_logs_diverge_is_read_on_from_loudly(reset: int, caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader(reset=reset)
    reader.ask()
    reader.answer(3)
    assert (reader.place.position, reader.place.epoch) == (3, 1)
    [message] = caplog.messages
    assert "t-0: the log was truncated" in message
    assert "before offset 5" in message
    assert "reading on from offset 3" in message


def test_without_a_reset_the_user_is_told_and_says_where_to_go() -> None:
    reader = Reader(reset=None)
    reader.ask()
    reader.answer(3)
    for _ in range(2):
        with pytest.raises(LogTruncated) as told:
            reader.place.questions()
        assert (told.value.position, told.value.epoch, told.value.diverging_offset) == (5, 1, 3)
    reader.place.seek(3)
    assert (reader.place.position, reader.place.questions()) == (3, ())


@pytest.mark.parametrize("reset", [EARLIEST, LATEST])
def test_a_leader_that_knows_no_such_epoch_has_nothing_of_it(reset: int, caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader(reset=reset)
    reader.ask()
    reader.answer(-1, epoch=-1)
    assert reader.place.position is None
    assert reader.place.questions() == (reset,)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_without_a_reset_an_unknown_epoch_is_an_error_too() -> None:
    reader = Reader(reset=None)
    reader.ask()
    reader.answer(-1, epoch=-1)
    with pytest.raises(LogTruncated, match="seek to its start or end") as told:
        reader.place.questions()
    assert told.value.diverging_offset == -1


def test_a_position_before_the_start_of_the_log_is_for_the_fetch_to_tell() -> None:
    """For an epoch before all of its own a leader answers with where its log starts. Nothing diverges: the records were
    deleted, and OFFSET_OUT_OF_RANGE will say so, with both ends."""
    reader = Reader()
    reader.ask()
    reader.answer(100)
    assert not reader.needed()
    assert reader.place.position == 5


def test_what_was_fetched_ahead_and_not_seen_is_fetched_again(caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader()
    reader.fetches_ahead(3, epoch=1)
    reader.ask()
    reader.answer(6)
    assert (reader.place.position, reader.place.epoch) == (5, 1)
    assert reader.place.generation > reader.buffer.generation  # what is here is void
    assert not caplog.messages  # the user has seen nothing of it


def test_a_leader_that_changes_meanwhile_is_asked_too() -> None:
    reader = Reader()
    reader.ask()
    reader.leads_in(3)
    reader.answer(5)
    assert reader.needed()
    reader.ask()
    assert reader.wire.sent[1][0].topics[0].partitions[0].current_leader_epoch == 3
    reader.answer(4)
    assert reader.place.position == 4


def test_who_seeks_meanwhile_is_left_there() -> None:
    """Also when the answer would send him elsewhere; and it is asked about the new place at once."""
    reader = Reader()
    reader.ask()
    reader.place.seek(2, 1)
    reader.begin()
    assert reader.needed()
    reader.ask()
    assert len(reader.wire.sent) == 2
    reader.answer(0, question=0)
    assert reader.place.position == 2
    assert reader.needed()
    reader.answer(9, question=1)
    assert reader.place.position == 2
    assert not reader.needed()


def test_who_unassigns_meanwhile_is_not_told() -> None:
    reader = Reader()
    reader.ask()
    reader.buffers.clear()
    reader.answer(0)
    assert reader.place.position == 5
    assert not reader.complaints


def test_a_fetch_that_arrives_meanwhile_makes_it_another_question() -> None:
    """The fetch was answered in the new epoch: what the old epoch's end is does not matter any more."""
    reader = Reader()
    reader.ask()
    reader.fetches_ahead(1, epoch=2)
    reader.answer(0)
    assert reader.place.position == 5
    assert not reader.needed()


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.unknown_topic_or_partition,
    ],
    ids=lambda error: error.name,
)
def test_an_error_that_passes_has_it_asked_again_of_who_leads_then(error: ErrorCode) -> None:
    reader = Reader()
    reader.ask()
    assert not reader.wants_metadata()
    reader.answer(-1, epoch=-1, error=error)
    assert reader.wants_metadata()
    assert reader.resting == [TP]
    assert not reader.complaints
    assert reader.place.position == 5
    assert reader.needed()
    reader.ask()
    assert len(reader.wire.sent) == 2


def test_a_lost_connection_has_it_asked_again() -> None:
    reader = Reader()
    reader.ask()
    reader.take(error=NetworkException("h:9 closed the connection"))
    assert reader.wants_metadata()
    assert reader.resting == [TP]
    assert not reader.complaints
    assert reader.needed()


def test_an_error_that_stays_is_told() -> None:
    reader = Reader()
    reader.ask()
    reader.answer(-1, epoch=-1, error=ErrorCode.topic_authorization_failed)
    assert [type(error) for error in reader.complaints] == [TopicAuthorizationFailed]
    assert reader.needed()


def test_a_partition_that_is_left_out_of_the_answer_is_asked_for_again() -> None:
    reader = Reader()
    reader.ask()
    reader.take(frame=encode_response(API_KEY, VERSION, 1, entity(response_type(API_KEY, VERSION), {})))
    assert reader.resting == [TP]
    assert reader.needed()


def test_a_broker_from_before_leader_epochs_has_nothing_to_say() -> None:
    reader = Reader()
    reader.ask()
    reader.take(error=UnsupportedVersion("h:9 speaks API 23 not at all"))
    assert not reader.needed()
    assert reader.place.position == 5
