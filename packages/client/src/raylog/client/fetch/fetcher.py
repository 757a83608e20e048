"""The consumer's exchange with brokers: asks for offsets and data of the assigned partitions, takes the answers in.

It runs in the thread of whoever polls, so there is nothing to lock and nothing happens behind the user's
back. One fetch per broker is under way at a time; while the user reads one answer, the next is fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from raylog.client.arguments.serde import Deserializer
from raylog.client.config.client import METADATA_MAX_AGE_MS, REQUEST_TIMEOUT_MS, RETRY_BACKOFF_MS
from raylog.client.fetch.complaints import Complaints
from raylog.client.fetch.consumer_config import (
    CHECK_CRCS,
    CLIENT_RACK,
    FETCH_MAX_BYTES,
    FETCH_MAX_WAIT_MS,
    FETCH_MIN_BYTES,
    MAX_PARTITION_FETCH_BYTES,
    isolation_level,
)
from raylog.client.fetch.epoch_checks import EpochChecks, EpochQuestion
from raylog.client.fetch.fetch_plan import FetchPlan
from raylog.client.fetch.fetch_session import FINAL_EPOCH, SessionRequest
from raylog.client.fetch.fetch_state import PartitionBuffer
from raylog.client.fetch.leaders import Leaders
from raylog.client.fetch.offset_searches import OffsetSearches
from raylog.client.fetch.read_replicas import ReadReplicas
from raylog.client.fetch.subscription import Place, Subscription
from raylog.client.network.connection import Address, Reply
from raylog.client.network.metadata import ClusterView
from raylog.client.network.network import CONNECT_POLL_MS, Network
from raylog.client.telemetry.metrics import FetchCounts
from raylog.coordination.host.clocks import monotonic_ms
from raylog.protocol.errors import (
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    OffsetOutOfRange,
    RaylogError,
    UnknownTopicId,
    exception_for,
    is_retriable,
)
from raylog.protocol.ids import PartitionIndex, TopicId, TopicName, TopicPartition
from raylog.protocol.logs import Logger
from raylog.protocol.settings import Settings
from raylog.protocol.wire.fetch import (
    API_KEY,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    encode_fetch_request,
    parse_fetch_response,
)
from raylog.protocol.wire.primitives import NodeEndpoint

log = Logger(__name__)

FETCH_VERSION = 13
"""Topics by their ids (KIP-516): an answer is of the topic that was asked for. A place that knows its topic's id, as a
group's do, is read in no other one; one that does not goes on at its position in whichever topic has the name."""
_IDLE_MS = 60_000
_CLOSING = 8  # requests under way to a broker beyond which it isn't told that its session is over


class _Fetch(NamedTuple):
    """Whom a fetch under way asked: its session has what for. ``view``: what was known then."""

    address: Address
    view: ClusterView


class Fetcher:
    """Fills :attr:`buffers`; :attr:`filled` are those that have something, in the order in which they take turns. The
    user is told of :attr:`complaints`."""

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
        self._max_bytes = settings[FETCH_MAX_BYTES]
        self._min_bytes = settings[FETCH_MIN_BYTES]
        self._max_wait_ms = settings[FETCH_MAX_WAIT_MS]
        self._timeout_ms = settings[REQUEST_TIMEOUT_MS] + self._max_wait_ms
        self._rack = settings[CLIENT_RACK]
        self._isolation_level = isolation_level(settings)
        self._replicas = ReadReplicas(
            network.reachable, first_pause_ms=settings[RETRY_BACKOFF_MS], max_age_ms=settings[METADATA_MAX_AGE_MS]
        )
        self._fetching: set[Address] = set()
        self._leaders = Leaders(network, subscription, self.complaints.add, settings[RETRY_BACKOFF_MS])
        self._searches = OffsetSearches(
            network, subscription, self._leaders, self.complaints.add, self._isolation_level
        )
        self._epochs = EpochChecks(network, subscription, self.buffers, self.complaints.add, self._leaders.rest)
        check_crcs = settings[CHECK_CRCS]
        self._plan = FetchPlan(
            network,
            subscription,
            self._leaders,
            self._replicas,
            self._epochs,
            self.buffers,
            complain=self.complaints.add,
            new_buffer=lambda place: PartitionBuffer(place, key, value, check_crcs=check_crcs, counts=self.counts),
            hands_out=hands_out,
            max_partition_bytes=settings[MAX_PARTITION_FETCH_BYTES],
        )
        self.filled = self._plan.filled

    def exchange(self, timeout_ms: float) -> float:
        """Send what can be sent, then take in what comes within ``timeout_ms``: one round of waiting at
        most. Returns after how many ms, at the latest, to come again."""
        if not self._is_whole:
            self._start_over()
        self._is_whole = False
        now_ms = monotonic_ms()
        self._plan.keep()
        blocked = self._searches.ask(self._plan.searching.values(), now_ms)
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
        self._plan.start_over()

    def metrics(self) -> dict[str, float]:
        """What was counted, and how far the places are behind; from any thread."""
        counted = self.counts.read((place.lag for place in self._subscription), monotonic_ms())
        return {**self._network.pool.metrics(), **counted}

    def turn(self, buffer: PartitionBuffer) -> None:
        """``buffer`` was served: the others come first now."""
        tp = buffer.place.tp
        if self.filled.get(tp) is buffer:
            del self.filled[tp]
            self.filled[tp] = buffer

    def _fetch(self, now_ms: int) -> bool:
        """Send a fetch to each broker to read from that has none under way. True when some can't be reached yet."""
        plan = self._plan
        blocked = plan.look(now_ms)
        if sum(b.held_bytes() for b in self.filled.values() if not b.place.paused) >= max(self._max_bytes, 1):
            return blocked  # memory is bounded: the user reads first
        for address, session in plan.sessions.items():
            if not session.wanted or address in self._fetching:
                continue
            if self._network.ready(address):
                # A partition that will be asked for soon should not wait for those that are now: don't linger there.
                max_wait_ms = 0 if address in plan.reserved else self._max_wait_ms
                rack = self._rack if self._replicas.may_name_rack(session.wanted, now_ms) else ""
                context = _Fetch(address, self._network.metadata.view)
                self._send(address, session.request(), max_wait_ms, context, rack)
                self._fetching.add(address)
            else:
                plan.unreachable(session)
                blocked = True
        return blocked

    def _send(self, address: Address, asked: SessionRequest, max_wait_ms: int, context: object, rack: str = "") -> None:
        topics: dict[TopicName, list[FetchPartition]] = {}
        for tp, partition in asked.partitions.items():
            topics.setdefault(tp.topic, []).append(partition)
        forgotten: dict[TopicName, list[int]] = {}
        for tp in asked.forgotten:
            forgotten.setdefault(tp.topic, []).append(tp.partition)
        ids = self._plan.sessions[address].topic_ids
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
        for address, session in self._plan.sessions.items():
            if session.id and self._network.pool.capacity(address, _CLOSING):
                self._send(address, SessionRequest(session.id, FINAL_EPOCH, {}, []), 0, session)
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
        session = self._plan.sessions[fetch.address]
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
            of_replica = [tp for tp, asked in session.asked.items() if asked.of_replica]
            for tp in of_replica:
                self._replicas.failed(tp, monotonic_ms())
            self._plan.look_at(of_replica)
            self._network.metadata.need_update()
            if not is_retriable(error):
                self.complaints.add(None, error)
            return
        found = [
            (TopicPartition(name, PartitionIndex(fetched.partition)), fetched)
            for topic in response.topics
            if (name := session.topic_names.get(TopicId(topic.topic_id))) is not None
            for fetched in topic.partitions
        ]
        wanted = {tp: session.asked.get(tp) for tp, _ in found}
        session.answered(response.session_id, wanted)
        self._plan.look_at(wanted)
        for tp, fetched in found:
            buffer, asked = self.buffers.get(tp), wanted[tp]
            if buffer is None or asked is None or asked.buffer is not buffer or buffer.is_void:
                continue  # it went elsewhere
            if asked.fetch.fetch_offset != buffer.fetch_offset:
                continue  # another broker, to whom the leadership moved, answered first
            try:
                if asked.of_replica:
                    self._take_from_replica(buffer, buffer.place, fetched)
                else:
                    self._take_partition(buffer, buffer.place, fetched, fetch.view, response.node_endpoints)
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
            self.filled.setdefault(place.tp, buffer)

    def _tell(self, kind: str, place: Place, text: str, *values: object) -> None:
        self._network.pool.log.info((kind, place.tp.topic), text, *values)
