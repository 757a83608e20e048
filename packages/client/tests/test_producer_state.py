"""The sequence machine, by example and against a model of a broker that loses answers and connections."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.client.batches.accumulator import Batch, BatchState
from raylog.client.produce.producer_state import MAX_EPOCH, Continuation, Identity, PartitionState, RetryPolicy
from raylog.protocol.errors import (
    DuplicateSequence,
    InvalidProducerEpoch,
    InvalidRecord,
    MessageTooLarge,
    NetworkException,
    NotLeaderOrFollower,
    OutOfOrderSequence,
    RaylogError,
    UnknownTopicId,
)
from raylog.protocol.ids import LeaderEpoch, PartitionIndex, TopicId, TopicName, TopicPartition
from raylog.protocol.records import Record

TP = TopicPartition(TopicName("t"), PartitionIndex(0))
EPOCH = LeaderEpoch(3)
POLICY = RetryPolicy(retries=1_000, backoff_ms=0, backoff_max_ms=0, window=5)


def batch(name: int, records: int = 2) -> Batch[int]:
    made = Batch(TP, name, 1_000, 0)
    made.records = [Record(b"v")] * records
    return made


def machine() -> PartitionState:
    state = PartitionState(TP, idempotent=True, policy=POLICY)
    state.identify(Identity(1_000, 0))
    return state


def send(state: PartitionState, fresh: Batch[int] | None = None) -> Batch[int]:
    sent = state.sendable(fresh, 0, EPOCH)
    assert sent is not None
    state.sent(sent, EPOCH)
    return sent


def pipelined(state: PartitionState, count: int) -> list[Batch[int]]:
    """A first batch acknowledged, ``count`` more in flight."""
    state.succeeded(send(state, batch(0)))
    return [send(state, batch(name)) for name in range(1, count + 1)]


def test_nothing_is_sent_without_a_producer_id() -> None:
    state = PartitionState(TP, idempotent=True, policy=POLICY)
    assert state.sendable(batch(0), 0, EPOCH) is None


def test_one_batch_goes_first_then_five_may_be_outstanding() -> None:
    state = machine()
    first = send(state, batch(0))
    assert state.sendable(batch(1), 0, EPOCH) is None
    state.succeeded(first)
    sequences = [send(state, batch(name)).sequence for name in range(1, 6)]
    assert sequences == [2, 4, 6, 8, 10]
    assert state.sendable(batch(6), 0, EPOCH) is None


def test_retries_go_one_at_a_time_in_order_under_their_sequences() -> None:
    state = machine()
    flying = pipelined(state, 3)
    for lost in flying:
        assert state.failed(lost, NetworkException("gone"), 0)
    for expected in flying:
        assert send(state, batch(9)) is expected
        assert (state.sendable(batch(9), 0, EPOCH) is None) == (expected is not flying[-1])
        state.succeeded(expected)
    assert [b.sequence for b in flying] == [2, 4, 6]
    assert send(state, batch(9)).sequence == 8


def test_a_retry_waits_for_its_backoff() -> None:
    state = PartitionState(TP, idempotent=True, policy=RetryPolicy(10, 100, 1_000, 5))
    state.identify(Identity(1, 0))
    sent = send(state, batch(0))
    state.failed(sent, NotLeaderOrFollower("moved"), 50)
    assert state.sendable(None, 149, EPOCH) is None
    assert state.retry_in_ms(149) == 1
    assert state.sendable(None, 150, EPOCH) is sent


def test_five_batches_lost_with_one_connection_are_one_failure() -> None:
    state = PartitionState(TP, idempotent=True, policy=RetryPolicy(10, 100, 60_000, 5))
    state.identify(Identity(1, 0))
    lost = pipelined(state, 5)
    for flying in lost:
        state.failed(flying, NetworkException("gone"), 50)
    assert state.retry_in_ms(50) == 100


def test_the_backoff_grows_with_each_try_of_the_lowest_batch() -> None:
    state = PartitionState(TP, idempotent=True, policy=RetryPolicy(10, 100, 350, 5))
    state.identify(Identity(1, 0))
    state.failed(send(state, batch(0)), NetworkException("gone"), 0)
    now_ms, pauses = 0, []
    for _ in range(4):
        pause_ms = state.retry_in_ms(now_ms)
        assert pause_ms is not None
        pauses.append(pause_ms)
        now_ms += pause_ms
        again = state.sendable(None, now_ms, EPOCH)
        assert again is not None
        state.sent(again, EPOCH)
        assert state.retry_in_ms(now_ms) is None
        state.failed(again, NetworkException("gone"), now_ms)
    assert pauses == [100, 200, 350, 350]


def test_a_newer_leader_is_gone_to_at_once_and_once() -> None:
    state = PartitionState(TP, idempotent=True, policy=RetryPolicy(10, 100, 1_000, 5))
    state.identify(Identity(1, 0))
    sent = send(state, batch(0))
    newer = LeaderEpoch(EPOCH + 1)
    state.failed(sent, NotLeaderOrFollower("moved"), 50)
    assert state.sendable(None, 50, EPOCH) is None
    assert state.sendable(None, 50, newer) is sent
    state.sent(sent, newer)
    state.failed(sent, NotLeaderOrFollower("not yet"), 60)
    assert state.sendable(None, 60, newer) is None
    assert state.retry_in_ms(60) == 200


def test_retries_are_counted() -> None:
    state = PartitionState(TP, idempotent=True, policy=RetryPolicy(1, 0, 0, 5))
    state.identify(Identity(1, 0))
    sent = send(state, batch(0))
    assert state.failed(sent, NetworkException("gone"), 0)
    assert not state.failed(send(state), NetworkException("gone"), 0)
    assert sent.state is BatchState.DONE


def test_a_refused_batch_leaves_a_gap_that_the_next_epoch_closes() -> None:
    state = machine()
    bad, second, third = pipelined(state, 3)
    assert not state.failed(bad, InvalidRecord("no"), 0)
    assert state.sendable(batch(9), 0, EPOCH) is None
    assert state.failed(second, OutOfOrderSequence("gap"), 0)
    assert state.failed(third, OutOfOrderSequence("gap"), 0)
    assert state.identity == Identity(1_000, 1)
    assert (second.sequence, third.sequence) == (0, 2)
    assert send(state) is second


def test_an_expired_batch_that_was_sent_is_settled_by_its_successors() -> None:
    state = machine()
    first, second = pipelined(state, 2)
    state.failed(first, NetworkException("gone"), 0)
    state.failed(second, NetworkException("gone"), 0)
    assert state.expire(first)
    assert state.identity == Identity(1_000, 0)
    assert send(state).sequence == 4  # may be there already: only its old sequence can tell
    state.succeeded(second)
    assert state.identity == Identity(1_000, 1)


def test_a_batch_that_expires_in_flight_still_counts_when_its_answer_comes() -> None:
    state = machine()
    (flying,) = pipelined(state, 1)
    assert not state.expire(flying)
    assert flying.abandoned
    state.succeeded(flying)
    assert state.identity == Identity(1_000, 0)
    assert send(state, batch(2)).sequence == 4


def test_epochs_that_are_used_up_need_another_id() -> None:
    state = PartitionState(TP, idempotent=True, policy=POLICY)
    state.identify(Identity(7, MAX_EPOCH))
    assert not state.failed(send(state, batch(0)), InvalidRecord("no"), 0)
    assert state.identity is None
    state.identify(Identity(8, 0))
    assert send(state, batch(1)).sequence == 0


def test_sequences_wrap() -> None:
    state = machine()
    state._next_sequence = (1 << 31) - 1
    state.succeeded(send(state, batch(0)))
    assert send(state, batch(1)).sequence == 1


def continued(next_sequence: int) -> PartitionState:
    continuation = Continuation(Identity(7, 3), {TP: next_sequence})
    return PartitionState(TP, idempotent=True, policy=POLICY, continues=continuation)


def test_a_continued_producer_keeps_identity_and_numbers() -> None:
    state = continued(40)
    state.succeeded(send(state, batch(0)))
    assert state.identity == Identity(7, 3)
    assert [send(state, batch(name)).sequence for name in range(1, 3)] == [42, 44]
    assert send(continued((1 << 31) - 2), batch(0)).sequence == (1 << 31) - 2
    assert send(continued(1 << 31), batch(0)).sequence == 0


def test_a_continued_producer_never_takes_the_next_epoch() -> None:
    state = continued(40)
    first = send(state, batch(0))
    assert not state.failed(first, OutOfOrderSequence("another number is next"), 0)
    assert state.identity == Identity(7, 3)
    assert state.sendable(batch(1), 0, EPOCH) is None


def halved(state: PartitionState, large: Batch[int]) -> list[Batch[int]]:
    """Its halves, in its place, of its own name and the next ones."""
    middle = len(large.records) // 2
    parts = [batch(large.outcome, middle), batch(large.outcome, len(large.records) - middle)]
    for part in parts:
        part.state = BatchState.RETRY
    state.split(large, parts)
    return parts


@pytest.mark.parametrize(
    ("state", "identity"),
    [(machine(), Identity(1_000, 0)), (continued(0), Identity(7, 3))],
    ids=["own", "continued"],
)
def test_halves_go_under_the_sequences_of_the_whole(state: PartitionState, identity: Identity) -> None:
    state.succeeded(send(state, batch(0)))
    large, second, third = (send(state, batch(name, records=5)) for name in range(3))
    parts = halved(state, large)
    assert [part.sequence for part in parts] == [2, 4]
    assert state.sendable(batch(9), 0, EPOCH) is None  # those behind are still to be refused
    assert state.failed(second, OutOfOrderSequence("gap"), 0)
    assert state.failed(third, OutOfOrderSequence("gap"), 0)
    for expected in (*parts, second, third):
        assert send(state, batch(9)) is expected
        state.succeeded(expected)
    assert [second.sequence, third.sequence, send(state, batch(9)).sequence] == [7, 12, 17]
    assert state.identity == identity


def test_sequences_of_halves_wrap() -> None:
    state = machine()
    state._next_sequence = (1 << 31) - 1
    parts = halved(state, send(state, batch(0, records=3)))
    assert [part.sequence for part in parts] == [(1 << 31) - 1, 0]


def test_halves_wait_for_no_backoff() -> None:
    state = PartitionState(TP, idempotent=False, policy=RetryPolicy(10, 100, 1_000, 5))
    large = send(state, batch(0))
    parts = halved(state, large)
    assert [part.sequence for part in parts] == [-1, -1]
    assert send(state) is parts[0]


def test_a_continued_producer_sends_again_in_order() -> None:
    state = continued(40)
    state.succeeded(send(state, batch(0)))
    first, second = send(state, batch(1)), send(state, batch(2))
    assert state.failed(first, NetworkException("gone"), 0)
    assert state.failed(second, OutOfOrderSequence("the first is missing"), 0)
    assert [send(state).sequence] == [first.sequence]
    state.succeeded(first)
    assert send(state) is second
    state.succeeded(second)
    assert send(state, batch(3)).sequence == 46


def test_without_idempotence_there_are_no_sequences() -> None:
    state = PartitionState(TP, idempotent=False, policy=POLICY)
    assert [send(state, batch(name)).sequence for name in range(3)] == [-1, -1, -1]


OLD, NEW = (TopicId(UUID(int=number)) for number in (1, 2))


def test_a_topic_made_anew_begins_with_one_batch_under_sequence_0() -> None:
    state = machine()
    assert state.turn_to(OLD)
    first, second, third = pipelined(state, 3)
    assert not state.turn_to(NEW)  # answers of the topic before are awaited
    for gone in (first, second, third):
        assert state.failed(gone, UnknownTopicId("gone"), 0)
    assert state.turn_to(NEW)
    assert state.topic_id == NEW
    assert send(state) is first
    assert state.sendable(batch(9), 0, EPOCH) is None
    state.succeeded(first)
    assert [b.sequence for b in (first, second, third)] == [0, 2, 4]
    assert state.identity == Identity(1_000, 1)


def test_an_id_that_comes_back_is_numbered_anew() -> None:
    """Else a new batch there could be taken for the one that has its number already."""
    state = machine()
    numbered = []
    for topic_id in OLD, NEW, OLD:
        assert state.turn_to(topic_id)
        sent = send(state, batch(0))
        assert state.identity is not None
        numbered.append((state.identity.epoch, sent.sequence))
        state.succeeded(sent)
    assert numbered == [(0, 0), (1, 0), (2, 0)]


def test_a_topic_made_anew_waits_for_no_backoff_and_has_no_gap() -> None:
    state = PartitionState(TP, idempotent=True, policy=RetryPolicy(10, 100, 1_000, 5))
    state.identify(Identity(1, 0))
    assert state.turn_to(OLD)
    refused, second = pipelined(state, 2)
    assert not state.failed(refused, InvalidRecord("no"), 0)
    assert state.failed(second, UnknownTopicId("gone"), 0)
    assert state.sendable(None, 0, EPOCH) is None
    assert state.turn_to(NEW)
    assert send(state) is second
    state.succeeded(second)
    assert send(state, batch(3)).sequence == 2


@pytest.mark.parametrize("named", [False, True])
def test_a_continued_producer_ends_where_its_topic_was_made_anew(named: bool) -> None:
    """The new one lacks what was sent before, and would take what comes behind it."""
    continuation = Continuation(Identity(7, 3), {TP: 40}, {TP.topic: OLD} if named else {})
    state = PartitionState(TP, idempotent=True, policy=POLICY, continues=continuation)
    if not named:
        assert state.turn_to(OLD)
        state.succeeded(send(state, batch(0)))
    with pytest.raises(UnknownTopicId, match="made anew"):
        state.turn_to(NEW)


@dataclass
class ModelBroker:
    """One partition as a broker keeps it: a log of records' names, and the last five batches of each producer."""

    log: list[int] = field(default_factory=list)
    limit: int = 1_000
    """How many records a batch may have."""
    topic_id: TopicId = OLD
    former: list[list[int]] = field(default_factory=list)
    """The logs of the topics before."""
    epoch: int = -1
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=5))

    def renew(self) -> None:
        """The topic is deleted and made anew."""
        self.topic_id = TopicId(UUID(int=self.topic_id.int + 1))
        self.former.append(self.log)
        self.log, self.epoch = [], -1
        self.recent.clear()

    def append(
        self, names: Sequence[int], epoch: int, sequence: int, topic_id: TopicId | None = None
    ) -> RaylogError | None:
        count = len(names)
        if topic_id not in (None, self.topic_id):
            return UnknownTopicId("another topic")
        if count > self.limit:
            return MessageTooLarge("too large")
        if epoch < self.epoch:
            return InvalidProducerEpoch("fenced")
        if epoch > self.epoch:
            if sequence and self.epoch >= 0:
                return OutOfOrderSequence("a new epoch begins at 0")
            self.epoch = epoch
            self.recent.clear()
        elif self.recent:
            if (sequence, count) in self.recent:
                return None  # answered as before
            if sequence != sum(self.recent[-1]):
                older = sequence < self.recent[0][0]
                return DuplicateSequence("older") if older else OutOfOrderSequence("gap")
        self.recent.append((sequence, count))
        self.log += names
        return None


def names_of(some: Batch[int]) -> list[int]:
    """Of its records."""
    return [int(record.value or b"") for record in some.records]


@settings(max_examples=max(300, settings().max_examples))
@given(st.data())
def test_no_record_is_there_twice_or_out_of_order_whatever_is_lost(data: st.DataObject) -> None:
    state, broker = machine(), ModelBroker(limit=data.draw(st.integers(1, 4)))
    names = itertools.count()
    waiting: deque[Batch[int]] = deque()
    for name in range(data.draw(st.integers(1, 12))):
        waiting.append(batch(name, records=1 + name % 4))
        waiting[-1].records = [Record(b"%d" % next(names)) for _ in waiting[-1].records]
    wire: deque[tuple[Batch[int], int, int, TopicId]] = deque()
    answers: deque[tuple[Batch[int], RaylogError | None]] = deque()
    succeeded: list[int] = []
    known = broker.topic_id

    def settle(settled: Batch[int], error: RaylogError | None) -> None:
        if error is None or isinstance(error, DuplicateSequence):
            state.succeeded(settled)
            if not settled.abandoned:
                succeeded.extend(names_of(settled))
        elif isinstance(error, MessageTooLarge) and len(settled.records) > 1 and not settled.abandoned:
            records = settled.records
            for part, some in zip(
                halved(state, settled), (records[: len(records) // 2], records[len(records) // 2 :]), strict=True
            ):
                part.records = some
        else:
            state.failed(settled, error, 0)

    def sendable() -> Batch[int] | None:
        return state.sendable(waiting[0] if waiting else None, 0, EPOCH) if state.turn_to(known) else None

    def step(action: str) -> None:
        nonlocal known
        if action == "send":
            sent = sendable()
            if sent is not None:
                if waiting and sent is waiting[0]:
                    waiting.popleft()
                state.sent(sent, EPOCH)
                assert state.identity is not None
                wire.append((sent, state.identity.epoch, sent.sequence, state.topic_id))
        elif action == "arrive" and wire:
            arrived, epoch, sequence, topic_id = wire.popleft()
            answers.append((arrived, broker.append(names_of(arrived), epoch, sequence, topic_id)))
        elif action == "refuse" and wire:
            answers.append((wire.popleft()[0], NotLeaderOrFollower("moved")))
        elif action == "answer" and answers:
            settle(*answers.popleft())
        elif action == "die":
            lost = [entry[0] for entry in answers] + [entry[0] for entry in wire]
            answers.clear()
            wire.clear()
            for gone in lost:
                settle(gone, NetworkException("the connection died"))
        elif action == "expire" and state.outstanding:
            state.expire(state.outstanding[0])
        elif action == "renew":
            broker.renew()
        elif action == "learn":
            known = broker.topic_id

    def enabled() -> list[str]:
        able = ["renew" if known == broker.topic_id else "learn"]
        if sendable() is not None:
            able.append("send")
        if wire:
            able += ["arrive", "arrive", "refuse"]
        if answers:
            able.append("answer")
        if wire or answers:
            able.append("die")
        if state.outstanding:
            able.append("expire")
        return able

    for choice in data.draw(st.lists(st.integers(0, 6), min_size=20, max_size=80)):
        able = enabled()
        if able:
            step(able[choice % len(able)])
    for _ in range(600):  # the faults are over: everything gets through
        for action in ("learn", "send", "arrive", "answer"):
            step(action)
    assert not waiting
    assert not state.outstanding
    logs = [*broker.former, broker.log]
    for log in logs:
        assert log == sorted(set(log))
    assert set(succeeded) <= set().union(*logs)


def test_the_model_itself_refuses_gaps_and_answers_duplicates() -> None:
    broker = ModelBroker(limit=2)
    assert broker.append([0, 1], 0, 0) is None
    assert broker.append([0, 1], 0, 0) is None
    assert isinstance(broker.append([4], 0, 4), OutOfOrderSequence)
    assert isinstance(broker.append([2, 3, 4], 0, 2), MessageTooLarge)
    broker.renew()
    assert isinstance(broker.append([2], 0, 2, OLD), UnknownTopicId)
    assert broker.append([2], 0, 2, broker.topic_id) is None
    assert broker.former == [[0, 1]]
    assert broker.log == [2]
