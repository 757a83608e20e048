"""The consumer's exchange with brokers: asks for offsets and data of the assigned partitions, takes the answers in.

It runs in the thread of whoever polls, so there is nothing to lock and nothing happens behind the user's
back. One fetch per broker is under way at a time; while the user reads one answer, the next is fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from raylog.client.complaints import Complaints
from raylog.client.config import METADATA_MAX_AGE_MS, REQUEST_TIMEOUT_MS, RETRY_BACKOFF_MS
from raylog.client.connection import Address, Reply
from raylog.client.consumer_config import (
    CHECK_CRCS,
    CLIENT_RACK,
    FETCH_MAX_BYTES,
    FETCH_MAX_WAIT_MS,
    FETCH_MIN_BYTES,
    MAX_PARTITION_FETCH_BYTES,
    isolation_level,
)
from raylog.client.epoch_checks import EpochChecks, EpochQuestion
from raylog.client.fetch_session import FINAL_EPOCH, FetchSession, SessionRequest
from raylog.client.fetch_state import PartitionBuffer
from raylog.client.leaders import Leaders
from raylog.client.metadata import ClusterView
from raylog.client.metrics import FetchCounts
from raylog.client.network import CONNECT_POLL_MS, Network
from raylog.client.offset_searches import OffsetSearches
from raylog.client.read_replicas import ReadReplicas
from raylog.client.serde import Deserializer
from raylog.client.subscription import Place, Subscription
from raylog.coordination.clocks import monotonic_ms
from raylog.protocol.errors import (
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    OffsetOutOfRange,
    RaylogError,
    UnknownTopicId,
    exception_for,
    is_retriable,
)
from raylog.protocol.fetch import (
    API_KEY,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    encode_fetch_request,
    parse_fetch_response,
)
from raylog.protocol.ids import PartitionIndex, TopicId, TopicName, TopicPartition
from raylog.protocol.logs import Logger
from raylog.protocol.settings import Settings
from raylog.protocol.wire import NodeEndpoint

log = Logger(__name__)

FETCH_VERSION = 13
"""Topics by their ids (KIP-516): nothing is read of another topic that was given the name of one that is gone."""
_IDLE_MS = 60_000
_CLOSING = 8  # requests under way to a broker beyond which it isn't told that its session is over


class _Fetch(NamedTuple):
    """What a fetch under way asked for: the generation of each place, and the offset; and of whom, a leader or not.
    ``view``: what was known then."""

    address: Address
    asked: dict[TopicPartition, tuple[int, int]]
    of_replica: set[TopicPartition]
    view: ClusterView


class Fetcher:
    """Fills :attr:`buffers`, in the order in which they take turns; the user is told of :attr:`complaints`."""

    def __init__(
        self,
        settings: Settings,
        network: Network,
        subscription: Subscription,
        key: Deserializer | None,
        value: Deserializer | None,
        hands_out: Callable[[PartitionBuffer], bool],
    ) -> None:
        """``hands_out``: whether what the buffer has would be handed out by a poll now."""
        self.buffers: dict[TopicPartition, PartitionBuffer] = {}
        self.complaints = Complaints(subscription)
        self.counts = FetchCounts()
        self._is_whole = True
        """False during an exchange, and after one that an interrupt ended: then nobody knows what is under way."""
        self._network = network
        self._subscription = subscription
        self._deserializers = (key, value)
        self._hands_out = hands_out
        self._check_crcs = settings[CHECK_CRCS]
        self._max_bytes = settings[FETCH_MAX_BYTES]
        self._max_partition_bytes = settings[MAX_PARTITION_FETCH_BYTES]
        self._min_bytes = settings[FETCH_MIN_BYTES]
        self._max_wait_ms = settings[FETCH_MAX_WAIT_MS]
        self._timeout_ms = settings[REQUEST_TIMEOUT_MS] + self._max_wait_ms
        self._rack = settings[CLIENT_RACK]
        self._isolation_level = isolation_level(settings)
        self._replicas = ReadReplicas(
            network.reachable, first_pause_ms=settings[RETRY_BACKOFF_MS], max_age_ms=settings[METADATA_MAX_AGE_MS]
        )
        self._fetching: set[Address] = set()
        self._sessions: dict[Address, FetchSession] = {}
        self._leaders = Leaders(network, subscription, self.complaints.add, settings[RETRY_BACKOFF_MS])
        self._searches = OffsetSearches(
            network, subscription, self._leaders, self.complaints.add, self._isolation_level
        )
        self._epochs = EpochChecks(network, subscription, self.buffers, self.complaints.add, self._leaders.rest)

    def exchange(self, timeout_ms: float) -> float:
        """Send what can be sent, then take in what comes within ``timeout_ms``: one round of waiting at
        most. Returns after how many ms, at the latest, to come again."""
        if not self._is_whole:
            self._start_over()
        self._is_whole = False
        now_ms = monotonic_ms()
        self._keep_buffers()
        blocked = self._searches.ask(now_ms)
        blocked |= self._fetch(now_ms)
        again_ms = 0 if self.complaints else CONNECT_POLL_MS if blocked else _IDLE_MS
        before = self._network.metadata.view
        replies = self._network.poll(min(timeout_ms, again_ms))
        for reply in replies:
            self._take(reply)
        self._is_whole = True
        if replies or self._network.metadata.view is not before:
            return 0  # there may be more to ask for now
        return self._network.wait_ms(again_ms)

    def _start_over(self) -> None:
        """Ask for everything anew, on new connections: no answer comes to what was asked."""
        self._network.reset()
        self._fetching.clear()
        self._searches.forget()
        self._epochs.forget()
        for session in self._sessions.values():
            session.failed()

    def metrics(self) -> dict[str, float]:
        """What was counted, and how far the places are behind; from any thread."""
        counted = self.counts.read((place.lag for place in self._subscription), monotonic_ms())
        return {**self._network.pool.metrics(), **counted}

    def turn(self, buffer: PartitionBuffer) -> None:
        """``buffer`` was served: the others come first now."""
        tp = buffer.place.tp
        if self.buffers.get(tp) is buffer:
            del self.buffers[tp]
            self.buffers[tp] = buffer

    def _keep_buffers(self) -> None:
        """One buffer for each place that has a position, of its generation."""
        for tp in [tp for tp in self.buffers if tp not in self._subscription]:
            del self.buffers[tp]
        self._replicas.keep(self.buffers)
        self._leaders.keep()
        for place in self._subscription:
            buffer = self.buffers.get(place.tp)
            if place.position is None:
                self.buffers.pop(place.tp, None)
            elif buffer is None or buffer.place is not place or buffer.generation != place.generation:
                self.buffers[place.tp] = PartitionBuffer(
                    place, *self._deserializers, check_crcs=self._check_crcs, counts=self.counts
                )

    def _fetch(self, now_ms: int) -> bool:
        """Send a fetch to each broker to read from that has none under way. True when some can't be reached yet."""
        wanted: dict[Address, list[PartitionBuffer]] = {}
        moved: dict[Address, list[PartitionBuffer]] = {}
        reserved: set[Address] = set()
        blocked = False
        if sum(b.held_bytes() for b in self.buffers.values() if not b.place.paused) >= max(self._max_bytes, 1):
            return False  # memory is bounded: the user reads first
        for tp, buffer in self.buffers.items():
            if buffer.place.paused:
                continue
            if self._leaders.rests(tp, now_ms):
                blocked = True
                continue
            address = self._leaders.address(tp, now_ms)
            if address is None:
                blocked = True
            elif self._epochs.needed(buffer):
                moved.setdefault(address, []).append(buffer)
            else:
                epoch = self._network.metadata.view.leader_of(tp)[1]
                address = self._replicas.address(tp, address, epoch, now_ms)
                if not buffer.wants_more():
                    if self._hands_out(buffer):  # else it is full for long, as while a lease has lapsed
                        reserved.add(address)
                elif address not in self._fetching:
                    wanted.setdefault(address, []).append(buffer)
        blocked |= self._epochs.ask(moved)
        for address, buffers in wanted.items():
            if self._network.ready(address):
                # A partition that will be asked for soon should not wait for those that are now: don't linger there.
                self._send_fetch(address, buffers, 0 if address in reserved else self._max_wait_ms)
            else:
                blocked = True
        return blocked

    def _send_fetch(self, address: Address, buffers: list[PartitionBuffer], max_wait_ms: int) -> None:
        view = self._network.metadata.view
        wanted = {}
        for buffer in buffers:
            tp = buffer.place.tp
            epoch = view.leader_of(tp)[1]
            wanted[tp] = FetchPartition(tp.partition, buffer.fetch_offset, self._max_partition_bytes, epoch)
        topic_ids = {topic: view.topic_id(topic) for topic in {tp.topic for tp in wanted}}
        asked = self._sessions.setdefault(address, FetchSession()).request(wanted, topic_ids)
        offsets = {buffer.place.tp: (buffer.generation, buffer.fetch_offset) for buffer in buffers}
        of_replica = {tp for tp in wanted if address != self._network.leader_address(tp)}
        rack = self._rack if self._replicas.may_name_rack(wanted, monotonic_ms()) else ""
        self._send(address, asked, max_wait_ms, _Fetch(address, offsets, of_replica, self._network.metadata.view), rack)
        self._fetching.add(address)

    def _send(self, address: Address, asked: SessionRequest, max_wait_ms: int, context: object, rack: str = "") -> None:
        topics: dict[TopicName, list[FetchPartition]] = {}
        for tp, partition in asked.partitions:
            topics.setdefault(tp.topic, []).append(partition)
        forgotten: dict[TopicName, list[int]] = {}
        for tp in asked.forgotten:
            forgotten.setdefault(tp.topic, []).append(tp.partition)
        ids = self._sessions[address].topic_ids
        request = FetchRequest(
            max_wait_ms,
            self._min_bytes,
            [FetchTopic(topic, ids[topic], partitions) for topic, partitions in topics.items()],
            max_bytes=self._max_bytes,
            isolation_level=self._isolation_level,
            session_id=asked.session_id,
            session_epoch=asked.epoch,
            rack_id=rack,
            forgotten=[ForgottenTopic(topic, ids[topic], indexes) for topic, indexes in forgotten.items()],
        )
        client_id = self._network.pool.client_id
        self._network.pool.send(
            address,
            API_KEY,
            FETCH_VERSION,
            lambda correlation_id: (
                encode_fetch_request(FETCH_VERSION, request, correlation_id=correlation_id, client_id=client_id),
            ),
            context,
            timeout_ms=self._timeout_ms,
        )

    def close(self) -> None:
        """Tell brokers, without waiting, that their sessions are over: they keep room for so many only."""
        for address, session in self._sessions.items():
            if session.id and self._network.pool.capacity(address, _CLOSING):
                self._send(address, SessionRequest(session.id, FINAL_EPOCH, [], []), 0, session)
        self._network.pool.poll(0)

    def _take(self, reply: Reply) -> None:
        context = reply.request.context
        if isinstance(context, _Fetch):
            self._take_fetched(reply, context)
        elif isinstance(context, EpochQuestion):
            self._epochs.take(reply, context)
        else:
            self._searches.take(reply, context)

    def _take_fetched(self, reply: Reply, fetch: _Fetch) -> None:
        self._fetching.discard(fetch.address)
        session = self._sessions[fetch.address]
        try:
            if reply.error is not None:
                raise reply.error
            now_ms = monotonic_ms()
            self.counts.fetched(len(reply.frame), reply.request.latency_ms(now_ms), now_ms)
            _, response = parse_fetch_response(FETCH_VERSION, reply.frame)
            if response.error_code:
                raise exception_for(response.error_code, f"fetching from {fetch.address}")
        except (FetchSessionIdNotFound, InvalidFetchSessionEpoch) as error:
            log.debug("%s; beginning a new fetch session", error)
            session.failed(unknown=True)
            return
        except RaylogError as error:
            session.failed()
            for tp in fetch.of_replica:
                self._replicas.failed(tp, monotonic_ms())
            self._network.metadata.need_update()
            if not is_retriable(error):
                self.complaints.add(None, error)
            return
        answered = [
            (TopicPartition(name, PartitionIndex(fetched.partition)), fetched)
            for topic in response.topics
            if (name := session.topic_names.get(TopicId(topic.topic_id))) is not None
            for fetched in topic.partitions
        ]
        session.answered(response.session_id, [tp for tp, _ in answered])
        for tp, fetched in answered:
            buffer, place = self.buffers.get(tp), self._subscription.get(tp)
            if buffer is None or place is None:
                continue
            if (place.generation, buffer.fetch_offset) != fetch.asked.get(tp):
                continue  # it went elsewhere, or another broker, to whom the leadership moved, answered first
            try:
                if tp in fetch.of_replica:
                    self._take_from_replica(buffer, place, fetched)
                else:
                    self._take_partition(buffer, place, fetched, fetch.view, response.node_endpoints)
            except RaylogError as error:
                self.complaints.add(tp, error)
                self._leaders.rest(tp)

    def _take_partition(
        self,
        buffer: PartitionBuffer,
        place: Place,
        fetched: FetchedPartition[memoryview],
        asked: ClusterView,
        endpoints: Sequence[NodeEndpoint],
    ) -> None:
        if fetched.error_code == 0:
            if fetched.preferred_read_replica >= 0:
                epoch = self._network.metadata.view.leader_of(place.tp)[1]
                self._replicas.prefer(place.tp, fetched.preferred_read_replica, epoch, monotonic_ms())
            self._take_records(buffer, place, fetched)
            return
        error = exception_for(fetched.error_code, f"{place.tp} at offset {buffer.fetch_offset}")
        if isinstance(error, OffsetOutOfRange):
            if buffer.has_data():
                self._leaders.rest(place.tp)  # the user has not come to the lost offset yet
            else:
                place.lose(self._subscription.reset)
        elif fetched.leader_id >= 0 and self._network.take_hint(
            place.tp, asked.topic_id(place.tp.topic), fetched.leader_id, fetched.leader_epoch, endpoints
        ):
            self._tell("moved", place, "%s; going to broker %d, which leads it (KIP-951)", error, fetched.leader_id)
        elif is_retriable(error):
            if isinstance(error, UnknownTopicId):
                self._network.metadata.refused(place.tp.topic, asked.topic_id(place.tp.topic))
            self._tell("refused", place, "%s; asking who leads it", error)
            self._network.metadata.need_update()
            self._leaders.rest(place.tp)
        else:
            raise error

    def _take_from_replica(self, buffer: PartitionBuffer, place: Place, fetched: FetchedPartition[memoryview]) -> None:
        """It may lag: what it lacks, or refuses, proves nothing, and the leader is asked."""
        if fetched.error_code == 0:
            self._replicas.served(place.tp)
            self._take_records(buffer, place, fetched)
            return
        error = exception_for(fetched.error_code, f"{place.tp} at offset {buffer.fetch_offset}")
        self._tell("replica", place, "%s, of the replica nearby; reading from the leader", error)
        self._replicas.failed(place.tp, monotonic_ms())
        self._network.metadata.need_update()

    def _take_records(self, buffer: PartitionBuffer, place: Place, fetched: FetchedPartition[memoryview]) -> None:
        place.end = fetched.last_stable_offset if self._isolation_level else fetched.high_watermark
        if fetched.records:
            buffer.add(bytes(fetched.records), fetched.high_watermark, fetched.aborted or ())

    def _tell(self, kind: str, place: Place, text: str, *values: object) -> None:
        self._network.pool.log.info((kind, place.tp.topic), text, *values)
