"""Fetch sessions and their watches against a plain model, while topics are deleted and made anew under their names.

The broker hears of a topic's end or beginning in two steps, as a real one does: first its state says so, then those who
watch the partition are interrupted. Between any two steps of a request anything may happen. Whatever does, a session
remembers what its client wants, and after a request in peace the client knows how each of its partitions stands.
"""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from raylog.broker.handlers.fetch_sessions import FetchSessions, IncrementalFetch, SessionPartition
from raylog.broker.replication.delayed import DelayedFetches
from raylog.protocol.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

UNKNOWN_TOPIC_ID = 100
NAMES = ["t", "u"]
INDEXES = range(2)

Key = tuple[UUID, int]


class Event(NamedTuple):
    """Something that happens to a topic."""

    kind: str
    name: str
    index: int


EVENTS = st.builds(
    Event,
    st.sampled_from(["append", "replace", "delete", "interrupt"]),
    st.sampled_from(NAMES),
    st.sampled_from(INDEXES),
)
SOME = st.lists(EVENTS, max_size=3)


class Client:
    """One session from its client's side."""

    def __init__(self, session_id: int, wanted: set[Key], *, follower: bool) -> None:
        self.session_id = session_id
        self.epoch = 1
        self.wanted = wanted
        self.follower = follower
        self.known: dict[Key, tuple[int, int]] = {}
        """Of each partition the error and the offset that it was told last."""


class Sessions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ids, self.session_ids = itertools.count(1), itertools.count(1)
        self.now_ms = 0
        self.delayed = DelayedFetches(nullcontext())
        self.sessions = FetchSessions(3, self.delayed, new_id=self.session_ids.__next__, new_lock=nullcontext)
        self.topics: dict[str, UUID] = {}
        self.ends: dict[Key, int] = {}
        self.untold: list[TopicPartition] = []
        """Partitions that changed and whose watches were not interrupted yet."""
        self.ever: list[UUID] = []
        self.clients: list[Client] = []
        for name in NAMES:
            self.happen(Event("replace", name, 0))
        self.ever.append(UUID(int=next(self.ids)))  # an id that the broker has not heard of yet
        for follower in (False, True):
            self.begin(follower)

    # --- the broker ---

    def happen(self, event: Event) -> None:
        kind, name, index = event
        tps = [TopicPartition(TopicName(name), PartitionIndex(each)) for each in INDEXES]
        match kind:
            case "append" if name in self.topics:
                self.ends[self.topics[name], index] += 1
                self.delayed.appended(tps[index], 1)
                self.delayed.advanced(tps[index], 1)
            case "delete":
                self.topics.pop(name, None)
                self.untold += tps
            case "replace":
                unborn = [topic_id for topic_id in self.ever if (topic_id, 0) not in self.ends]
                topic_id = unborn[0] if unborn else UUID(int=next(self.ids))
                self.ever = [*self.ever, topic_id] if not unborn else self.ever
                self.topics[name] = topic_id
                self.ends |= {(topic_id, each): 0 for each in INDEXES}
                self.untold += tps
            case "interrupt":
                self.all_told()

    def all_told(self) -> None:
        while self.untold:
            self.delayed.interrupt(self.untold.pop(0))

    def place(self, key: Key) -> TopicPartition | None:
        for name, topic_id in self.topics.items():
            if topic_id == key[0]:
                return TopicPartition(TopicName(name), PartitionIndex(key[1]))
        return None

    def found(self, key: Key) -> FetchedPartition[Any]:
        if self.place(key) is None:
            return FetchedPartition(key[1], UNKNOWN_TOPIC_ID)
        return FetchedPartition(key[1], 0, self.ends[key], self.ends[key], 0)

    def begin(self, follower: bool) -> None:
        """Another session, of partitions that exist."""
        if not self.topics:
            self.happen(Event("replace", "t", 0))
        wanted = {(topic_id, index) for topic_id in self.topics.values() for index in INDEXES}
        request = self.request(wanted, set(), 0, 0, follower)
        told = [self.found((topic.topic_id, topic.partitions[0].partition)) for topic in request.topics]
        client = Client(self.sessions.create(request, told, by_id=True, now_ms=self.now_ms), wanted, follower=follower)
        client.known = {key: self.state(key) for key in wanted}
        self.clients.append(client)

    def state(self, key: Key) -> tuple[int, int]:
        found = self.found(key)
        return found.error_code, found.high_watermark

    def request(
        self, wanted: set[Key], forgotten: set[Key], session_id: int, epoch: int, follower: bool
    ) -> FetchRequest:
        return FetchRequest(
            500,
            1,
            [FetchTopic("", topic_id, [FetchPartition(index, 0, 100)]) for topic_id, index in sorted(wanted)],
            session_id=session_id,
            session_epoch=epoch,
            forgotten=[ForgottenTopic("", topic_id, [index]) for topic_id, index in sorted(forgotten)],
            replica_id=2 if follower else -1,
        )

    # --- rules ---

    @rule(event=EVENTS)
    def something_happens(self, event: Event) -> None:
        self.happen(event)

    @rule(who=st.integers(0, 1), want=st.data(), between=st.tuples(SOME, SOME, SOME))
    def fetch(self, who: int, want: st.DataObject, between: tuple[list[Event], ...]) -> None:
        """A request that is answered at once, or waits and is woken by what happens meanwhile."""
        client = self.clients[who]
        keys = st.tuples(st.sampled_from(self.ever), st.sampled_from(INDEXES))
        wanted = want.draw(st.sets(keys, max_size=2), "wanted")
        forgotten = want.draw(st.sets(keys, max_size=2), "forgotten") - wanted
        going = self.advance(client, wanted, forgotten)
        if going is None:
            self.clients[who] = self.clients.pop()
            return
        self.read(client, going, between)

    @rule(who=st.integers(0, 1), between=st.tuples(SOME, SOME, SOME))
    def fetch_that_is_overtaken(self, who: int, between: tuple[list[Event], ...]) -> None:
        client = self.clients[who]
        if not client.wanted:
            return
        first = self.advance(client, set(), set())
        assert first is not None
        looked_at = first.look(1, lambda: None)
        second = self.advance(client, set(), {min(client.wanted)})
        with pytest.raises(InvalidFetchSessionEpoch):
            first.watch_also([(partition, None) for partition in looked_at])
        with pytest.raises(InvalidFetchSessionEpoch):
            first.report([])
        if second is None:
            self.clients[who] = self.clients.pop()
        else:
            self.read(client, second, between)

    @rule(who=st.integers(0, 1))
    def client_begins_anew(self, who: int) -> None:
        client = self.clients[who]
        ending = self.request(set(), set(), client.session_id, 0, client.follower)
        assert self.sessions.begin(ending, by_id=True, now_ms=self.now_ms) is None
        with pytest.raises(FetchSessionIdNotFound):
            self.advance(client, set(), set())
        self.begin(client.follower)
        self.clients[who] = self.clients.pop()

    @rule(who=st.integers(0, 1))
    def fetch_in_peace(self, who: int) -> None:
        """Afterwards the client knows all: nothing that changed was lost on the way."""
        self.all_told()
        client = self.clients[who]
        going = self.advance(client, set(), set())
        if going is None:
            self.clients[who] = self.clients.pop()
            return
        self.read(client, going, ([], [], []))
        assert client.known == {key: self.state(key) for key in client.wanted}

    @invariant()
    def watches_are_bounded(self) -> None:
        assert len(self.delayed) <= sum(len(client.wanted) for client in self.clients)
        assert len(self.sessions) == len(self.clients)
        assert self.sessions.partition_count == sum(len(client.wanted) for client in self.clients)

    # --- one request ---

    def advance(self, client: Client, wanted: set[Key], forgotten: set[Key]) -> IncrementalFetch | None:
        """Its beginning; None when it left the session nothing, which ends it: then another one is the last client."""
        request = self.request(wanted, forgotten, client.session_id, client.epoch, client.follower)
        going = self.sessions.begin(request, by_id=True, now_ms=self.now_ms)
        client.epoch += 1
        client.wanted = (client.wanted | wanted) - forgotten
        client.known = {key: told for key, told in client.known.items() if key in client.wanted}
        if going is None:
            assert not client.wanted
            self.begin(client.follower)
        return going

    def read(self, client: Client, going: IncrementalFetch, between: tuple[list[Event], ...]) -> None:
        session = self.sessions._sessions[client.session_id]
        assert {key[1:] for key in session.partitions} == client.wanted
        looked_at = self.look(going)
        for event in between[0]:
            self.happen(event)
        going.watch_also([(each, self.place(each.key[1:])) for each in looked_at])
        for event in between[1]:
            self.happen(event)
        results = [(each, self.found(each.key[1:]), False) for each in looked_at]
        for event in between[2]:
            self.happen(event)
        for number in going.report(results):
            partition, found, _ = results[number]
            client.known[partition.key[1:]] = found.error_code, found.high_watermark

    def look(self, going: IncrementalFetch) -> list[SessionPartition]:
        looked_at = going.look(1, lambda: None)
        assert {id(each) for each in looked_at} <= {id(each) for each in going._session.partitions.values()}
        return looked_at


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=60, stateful_step_count=30)
