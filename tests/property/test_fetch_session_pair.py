"""The client's and the broker's fetch sessions, joined by a fake wire that loses requests and answers.

After every request that arrives the broker looks for exactly what the client wants, and what an answer named, taken or
not, is asked for anew.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from raylog.broker.handlers.fetch_sessions import FetchSessions
from raylog.broker.replication.delayed import DelayedFetches
from raylog.client.fetch.fetch_session import FetchSession, SessionRequest, Wanted
from raylog.protocol.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from raylog.protocol.ids import NO_TOPIC_ID, PartitionIndex, TopicId, TopicName, TopicPartition
from raylog.protocol.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

TOPIC = TopicName("t")
TPS = [TopicPartition(TOPIC, PartitionIndex(n)) for n in range(4)]
SLOTS = 2


def by_topic(kind: Any, topic_id: TopicId, found: list[Any]) -> list[Any]:
    return [kind("", topic_id, found)] if found else []


def on_the_wire(asked: SessionRequest, topic_id: TopicId) -> FetchRequest:
    return FetchRequest(
        0,
        0,
        by_topic(FetchTopic, topic_id, [*asked.partitions.values()]),
        session_id=asked.session_id,
        session_epoch=asked.epoch,
        forgotten=by_topic(ForgottenTopic, topic_id, [tp.partition for tp in asked.forgotten]),
    )


class Pair(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.client = FetchSession()
        self.ids = itertools.count(1)
        self.now_ms = 0
        self.wanted: dict[TopicPartition, FetchPartition] = {}
        self.named: set[TopicPartition] = set()
        self.topic_id = TopicId(UUID(int=1))
        for tp in TPS:
            self.want(tp, 0)
        self.a_new_broker()

    @rule()
    def a_new_broker(self) -> None:
        """It knows no session."""
        delayed = DelayedFetches(threading.Lock())
        self.broker = FetchSessions(SLOTS, delayed, new_id=lambda: next(self.ids), new_lock=threading.Lock)

    @rule()
    def others_fill_the_cache(self) -> None:
        request = FetchRequest(0, 0, [FetchTopic("t", NO_TOPIC_ID, [FetchPartition(0, 0, 1)])], session_epoch=0)
        self.now_ms += 130_000
        for _ in range(SLOTS):
            self.broker.create(request, [FetchedPartition(0)], by_id=False, now_ms=self.now_ms)

    @rule()
    def the_topic_is_made_anew(self) -> None:
        self.topic_id = TopicId(UUID(int=self.topic_id.int + 1))
        for tp, wanted in self.wanted.copy().items():
            self.want(tp, wanted.fetch_offset)

    @rule(tp=st.sampled_from(TPS), offset=st.integers(0, 1))
    def want(self, tp: TopicPartition, offset: int) -> None:
        self.wanted[tp] = FetchPartition(tp.partition, offset, 100)
        self.client.want(tp, Wanted(self.wanted[tp], self.topic_id, None, False))

    @rule(tp=st.sampled_from(TPS[1:]))
    def want_no_more(self, tp: TopicPartition) -> None:
        self.wanted.pop(tp, None)
        self.client.forget(tp)

    @rule(tp=st.sampled_from(TPS[1:]))
    def want_not_for_a_moment(self, tp: TopicPartition) -> None:
        """A partition whose answer the user hasn't read yet comes back later."""
        wanted = self.wanted.get(tp)
        self.want_no_more(tp)
        self.fetch(set(), "")
        if wanted is not None:
            self.want(tp, wanted.fetch_offset)
        self.fetch(set(), "")

    @rule(named=st.sets(st.sampled_from(TPS), max_size=1), lost=st.sampled_from(["", "", "", "request", "answer"]))
    def fetch(self, named: set[TopicPartition], lost: str) -> None:
        asked = self.client.request()
        if asked.epoch > 0:
            assert self.named & self.wanted.keys() <= asked.partitions.keys()
            self.named = set()
        if lost == "request":
            self.client.failed()
            return
        try:
            session_id = self.arrive(asked)
        except (FetchSessionIdNotFound, InvalidFetchSessionEpoch):
            assert asked.epoch > 0, "a full request is never refused"
            self.client.failed(unknown=True)
            return
        if lost == "answer":
            self.client.failed()
            return
        self.client.answered(session_id, named)
        self.named = named

    def arrive(self, asked: SessionRequest) -> int:
        topic_id = self.client.topic_ids[TOPIC]
        assert self.client.topic_names == {topic_id: TOPIC}
        request = on_the_wire(asked, topic_id)
        incremental = self.broker.begin(request, by_id=True, now_ms=self.now_ms)
        if incremental is not None:
            session_id = incremental.session_id
        else:
            told = [FetchedPartition(tp.partition) for tp in asked.partitions]
            session_id = self.broker.create(request, told, by_id=True, now_ms=self.now_ms)
        if session_id:
            remembered = self.broker._sessions[session_id].partitions
            assert {key[1:]: known.wanted for key, known in remembered.items()} == {
                (self.topic_id, tp.partition): partition for tp, partition in self.wanted.items()
            }
        assert len(self.broker) <= SLOTS
        return session_id


TestPair = Pair.TestCase
