"""◆ Of which broker a consumer asks which partition now, and from where on.

Nothing is looked at again that did not change, so that a partition in which nothing happens costs nothing. A partition
is *due* to be looked at when

- its place changed: it went elsewhere, was paused, assigned or given away (:attr:`Subscription.changed`),
- an answer named it, or it has something that the user has not taken yet,
- it waits for something: a pause after a failure, a leader, a check of its epoch,
- the replica nearby that it is read from is not to be trusted any more (:class:`ReadReplicas`),

and all are when the metadata changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from raylog.client.fetch.epoch_checks import EpochChecks
from raylog.client.fetch.fetch_session import FetchSession, Wanted
from raylog.client.fetch.fetch_state import PartitionBuffer
from raylog.client.fetch.leaders import Leaders
from raylog.client.fetch.read_replicas import ReadReplicas
from raylog.client.fetch.subscription import Place, Subscription
from raylog.client.network.connection import Address
from raylog.client.network.metadata import ClusterView
from raylog.client.network.network import Network
from raylog.protocol.errors import RaylogError, UnsupportedVersion
from raylog.protocol.ids import NO_TOPIC_ID, TopicPartition
from raylog.protocol.wire.fetch import FetchPartition

__all__ = ["FetchPlan"]

_NO_ID = (
    "topic {}: its brokers tell no id of it, by which it is fetched (KIP-516); read from brokers that do, Kafka 3.1"
)


class FetchPlan:
    """Keeps ``buffers``, one for each place that has a position, and what the sessions want."""

    def __init__(
        self,
        network: Network,
        subscription: Subscription,
        leaders: Leaders,
        replicas: ReadReplicas,
        epochs: EpochChecks,
        buffers: dict[TopicPartition, PartitionBuffer],
        *,
        complain: Callable[[TopicPartition | None, RaylogError], None],
        new_buffer: Callable[[Place], PartitionBuffer],
        hands_out: Callable[[PartitionBuffer], bool],
        max_partition_bytes: int,
    ) -> None:
        self.filled: dict[TopicPartition, PartitionBuffer] = {}
        """Those of the buffers that have something, or had when they were looked at last, in the order of turns."""
        self.searching: dict[TopicPartition, Place] = {}
        """Places without a position."""
        self.sessions: dict[Address, FetchSession] = {}
        self.reserved: set[Address] = set()
        """Brokers that are asked for more as soon as the user has taken what is here."""
        self._network = network
        self._subscription = subscription
        self._leaders = leaders
        self._replicas = replicas
        self._epochs = epochs
        self._buffers = buffers
        self._complain = complain
        self._new_buffer = new_buffer
        self._hands_out = hands_out
        self._max_partition_bytes = max_partition_bytes
        self._session_of: dict[TopicPartition, FetchSession] = {}
        """Where each partition is wanted."""
        self._due: dict[TopicPartition, None] = {}
        self._view: ClusterView | None = None
        """The metadata that all were looked at with."""

    def start_over(self) -> None:
        """Nothing is known any more of what was asked, nor of what changed."""
        for session in self.sessions.values():
            session.failed()
            session.wanted.clear()
        self._session_of.clear()
        for tp in [*self._buffers, *self.filled, *self.searching, *(place.tp for place in self._subscription)]:
            self._subscription.changed[tp] = None

    def keep(self) -> None:
        """Take up what changed of places: one buffer for each that has a position, of its generation."""
        changed, gone = self._subscription.changed, False
        while changed:  # one by one: another thread, or a signal handler, may add to it meanwhile
            tp, _ = changed.popitem()
            place, buffer = self._subscription.get(tp), self._buffers.get(tp)
            self._due[tp] = None
            if place is not None and place.position is not None:
                self.searching.pop(tp, None)
                if buffer is None or buffer.place is not place or buffer.generation != place.generation:
                    self._drop(tp)
                    self._buffers[tp] = self._new_buffer(place)
                continue
            self._drop(tp)
            self._replicas.forget(tp)
            if place is not None:
                self.searching[tp] = place
            else:
                self.searching.pop(tp, None)
                gone = True
        if gone:
            self._leaders.keep()

    def _drop(self, tp: TopicPartition) -> None:
        buffer = self._buffers.pop(tp, None)
        if buffer is not None:
            buffer.clear()  # what a session asked for it may be known for long
        self.filled.pop(tp, None)
        self._forget(tp)

    def look_at(self, partitions: Iterable[TopicPartition]) -> None:
        """Something happened to these."""
        self._due.update(dict.fromkeys(partitions))

    def look(self, now_ms: int) -> bool:
        """Decide for all that are due where to ask for them. True when some can't be asked for yet."""
        view, blocked = self._network.metadata.view, False
        if view is not self._view:
            self._view = view
            self.look_at(self._buffers)
        self.look_at(self.filled)
        self.look_at(self._replicas.expired(now_ms))
        self.reserved.clear()
        moved: dict[Address, list[PartitionBuffer]] = {}
        due, self._due = self._due, {}
        for tp in due:
            buffer = self._buffers.get(tp)
            if buffer is None:
                continue
            if not buffer.has_data():
                self.filled.pop(tp, None)
            elif tp not in self.filled:
                self.filled[tp] = buffer
            if buffer.place.paused:
                self._forget(tp)
                continue
            leader = None if self._leaders.rests(tp, now_ms) else self._leaders.address(tp, now_ms)
            if leader is not None and view.topic_id(tp.topic) == NO_TOPIC_ID:
                self._complain(None, UnsupportedVersion(_NO_ID.format(tp.topic)))
                self._leaders.rest(tp)
                leader = None
            if leader is None or self._epochs.needed(buffer):
                self._forget(tp)
                self._due[tp] = None
                if leader is None:
                    blocked = True
                else:
                    moved.setdefault(leader, []).append(buffer)
                continue
            self._ask(buffer, leader, now_ms)
        return self._epochs.ask(moved) or blocked

    def _ask(self, buffer: PartitionBuffer, leader: Address, now_ms: int) -> None:
        tp = buffer.place.tp
        view = self._network.metadata.view
        epoch = view.leader_of(tp)[1]
        address = self._replicas.address(tp, leader, epoch, now_ms)
        if not buffer.wants_more():
            self._forget(tp)
            if self._hands_out(buffer):  # else it is full for long, as while a lease has lapsed
                self.reserved.add(address)
            return
        session = self.sessions.get(address)
        if session is None:
            session = self.sessions[address] = FetchSession()
        if self._session_of.get(tp) is not session:
            self._forget(tp)
            self._session_of[tp] = session
        fetch = FetchPartition(tp.partition, buffer.fetch_offset, self._max_partition_bytes, epoch)
        session.want(tp, Wanted(fetch, view.topic_id(tp.topic), buffer, address != leader))

    def _forget(self, tp: TopicPartition) -> None:
        session = self._session_of.pop(tp, None)
        if session is not None:
            session.forget(tp)

    def unreachable(self, session: FetchSession) -> None:
        """Its broker can't be asked now: what is read there though it is not the leader may be read elsewhere."""
        self.look_at([tp for tp, wanted in session.wanted.items() if wanted.of_replica])
