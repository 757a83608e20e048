"""A follower's and its leader's end of a fetch session, joined by a fake wire that loses requests and answers.

After every request that arrives the leader remembers exactly what the follower wants, or nothing when its sessions are
all in use, and then the follower names everything each time.
"""

from __future__ import annotations

import itertools
import threading
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from raylog.broker.handlers.fetch_sessions import FetchSessions
from raylog.broker.replicas.follower_session import FollowerSession
from raylog.broker.replication.delayed import DelayedFetches
from raylog.protocol.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from raylog.protocol.wire.fetch import FetchedPartition, FetchPartition, FetchRequest

TOPICS = [UUID(int=number) for number in (1, 2)]
KEYS = [(topic, partition) for topic in TOPICS for partition in range(3)]
SLOTS = 2


class Pair(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.follower = FollowerSession()
        self.wanted: dict[tuple[UUID, int], FetchPartition] = {}
        self.ids = itertools.count(1)
        self.a_new_leader()

    @rule()
    def a_new_leader(self) -> None:
        """It knows no session."""
        delayed = DelayedFetches(threading.Lock())
        self.leader = FetchSessions(SLOTS, delayed, new_id=lambda: next(self.ids), new_lock=threading.Lock)

    @rule(key=st.sampled_from(KEYS), offset=st.integers(0, 2))
    def want(self, key: tuple[UUID, int], offset: int) -> None:
        topic_id, partition = key
        self.wanted[key] = FetchPartition(partition, offset, 100)
        self.follower.want(topic_id, self.wanted[key])

    @rule(key=st.sampled_from(KEYS))
    def leave_out(self, key: tuple[UUID, int]) -> None:
        self.wanted.pop(key, None)
        self.follower.leave_out(*key)

    @precondition(lambda self: self.wanted)
    @rule(
        lost=st.sampled_from(["", "", "", "request", "answer"]),
        meanwhile=st.none() | st.tuples(st.sampled_from(KEYS), st.none() | st.integers(0, 2)),
    )
    def fetch(self, lost: str, meanwhile: tuple[tuple[UUID, int], int | None] | None) -> None:
        """``meanwhile``: what is wanted, or no more, before the answer has come."""
        asked, wanted = self.follower.request(), self.wanted.copy()
        if meanwhile is not None:
            key, offset = meanwhile
            if offset is None:
                self.leave_out(key)
            else:
                self.want(key, offset)
        if lost == "request":
            self.follower.reset()
            return
        request = FetchRequest(
            0,
            0,
            asked.topics,
            session_id=asked.session_id,
            session_epoch=asked.session_epoch,
            forgotten=asked.forgotten,
            replica_id=7,
        )
        try:
            incremental = self.leader.begin(request, by_id=True, now_ms=0)
        except (FetchSessionIdNotFound, InvalidFetchSessionEpoch):
            assert asked.session_epoch > 0, "a full request is never refused"
            self.follower.reset()
            return
        if incremental is None:
            told = [FetchedPartition[bytes](part.partition) for topic in asked.topics for part in topic.partitions]
            session_id = self.leader.create(request, told, by_id=True, now_ms=0)
        else:
            session_id = incremental.session_id
        if session_id:
            remembered = self.leader._sessions[session_id].partitions
            assert {(key[1], key[2]): known.wanted for key, known in remembered.items()} == wanted
        assert len(self.follower) == len(self.wanted)
        if lost == "answer":
            self.follower.reset()
        else:
            self.follower.answered(session_id)


TestPair = Pair.TestCase
