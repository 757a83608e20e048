"""One fetcher: a thread and a connection to one leader, many partitions a request (see fetchers).

Its lock guards what it follows. It is not held while it waits for its leader, so that following and unfollowing never
wait for that; it is held while an answer goes into the logs, so that an unfollowed partition is left alone for good.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from raylog.broker.config import (
    BROKER_ID,
    FOLLOWER_REPLICATION_THROTTLED_REPLICAS,
    REPLICA_FETCH_BACKOFF_MS,
    REPLICA_FETCH_MAX_BYTES,
    REPLICA_FETCH_MIN_BYTES,
    REPLICA_FETCH_RESPONSE_MAX_BYTES,
    REPLICA_FETCH_WAIT_MAX_MS,
    REPLICA_SOCKET_TIMEOUT_MS,
    SOCKET_REQUEST_MAX_BYTES,
)
from raylog.broker.events import EventLog
from raylog.broker.partition.partition import Partition
from raylog.broker.replicas.follower_session import FollowerSession
from raylog.broker.replicas.leader_connection import PeerConnection
from raylog.broker.replication.quota import is_throttled
from raylog.coordination.host.loops import Loops
from raylog.protocol.errors import CorruptMessage, NetworkException, RaylogError, exception_for
from raylog.protocol.ids import BrokerEpoch, LeaderEpoch, MonotonicMs, Offset, TimestampMs, TopicPartition
from raylog.protocol.settings import Settings
from raylog.protocol.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse

__all__ = ["Fetcher", "Leader"]

logger = EventLog(__name__)

FIRST_BACKOFF_MS = 20
"""The pause after a first failure; it doubles with each, up to replica.fetch.backoff.ms. What fails first is often a
leader that has not heard yet that it is one.
"""

THROTTLE_CHECK_MS = 100
"""How often a throttled fetcher looks whether it may fetch on."""


class FetcherPorts(Protocol):
    """What a fetcher needs of its broker, shared by all its fetchers."""

    epoch: Callable[[], BrokerEpoch]
    """This broker's incarnation, as leaders are told it."""
    static: Settings
    """The settings that the broker was started with."""
    loops: Loops
    now_ms: Callable[[], TimestampMs]
    """The wall clock."""
    uptime_ms: Callable[[], MonotonicMs]
    """The monotonic one."""

    def fetched(self, sizes: Mapping[str, int]) -> None:
        """Count what an answer brought, in bytes by topic."""

    def may_fetch_throttled(self, came: int = 0) -> bool:
        """Whether the rate allows more of throttled replicas, after ``came`` more bytes of them."""


class Leader(NamedTuple):
    """One incarnation of a broker, at one address: what a connection is made to."""

    id: int
    epoch: BrokerEpoch
    host: str
    port: int


class _Followed:
    """One partition that follows, under its fetcher's lock."""

    __slots__ = ("committed", "failures", "first_request", "leader_epoch", "partition", "resume_ms")

    def __init__(self, partition: Partition, leader_epoch: LeaderEpoch, first_request: int) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.first_request = first_request
        """The number of the first request that can be about it: an answer to an earlier one is about another time."""
        self.failures = 0
        """In a row."""
        self.resume_ms: MonotonicMs | None = None
        """When it is fetched again, after an error; None while it is being fetched."""
        self.committed = Offset(0)
        """The leader's high watermark as told last."""


class Fetcher:
    """Follows one leader in one of its incarnations."""

    def __init__(self, ports: FetcherPorts, leader: Leader) -> None:
        settings = ports.static
        self.leader = leader
        self._ports = ports
        self._broker_id = settings[BROKER_ID]
        self._backoff_ms = settings[REPLICA_FETCH_BACKOFF_MS]
        self._wait_ms = settings[REPLICA_FETCH_WAIT_MAX_MS]
        self._min_bytes = settings[REPLICA_FETCH_MIN_BYTES]
        self._max_bytes = settings[REPLICA_FETCH_RESPONSE_MAX_BYTES]
        self._partition_max_bytes = settings[REPLICA_FETCH_MAX_BYTES]
        self._lock = threading.Condition()
        self._followed: dict[TopicPartition, _Followed] = {}
        self._by_id: dict[tuple[object, int], TopicPartition] = {}
        self._paused: set[TopicPartition] = set()
        """Those with a ``resume_ms``."""
        self._throttled: set[TopicPartition] = set()
        """Those left out because the rate is used up."""
        self.moved_starts: deque[TopicPartition] = deque()
        """Those whose logs begin elsewhere than their leader knows, perhaps. Any thread may append, under any lock."""
        self._session = FollowerSession()
        self._epoch = BrokerEpoch(-1)
        """The incarnation of this broker that the last request told."""
        self._requests = 0
        """How many were made; at most one is under way."""
        self._failures = 0
        """Times in a row that the leader could not be asked."""
        self._stopping = False
        self._failed = ""
        """Why the leader could not be asked last; empty once it answered."""
        self._connection = PeerConnection(
            f"broker-{self._broker_id}-fetcher-{leader.id}",
            timeout_ms=settings[REPLICA_SOCKET_TIMEOUT_MS],
            max_answer_bytes=self._max_bytes + settings[SOCKET_REQUEST_MAX_BYTES],
        )
        self._loop = ports.loops.loop(
            f"fetcher-{leader.id}",
            self._turn,
            mend=self._begin_anew,
            finish=self._connection.close,
            last_pause_s=self._backoff_ms / 1000,
        )
        self._loop.start()

    # --- called by the owner

    def add(self, partition: Partition, leader_epoch: LeaderEpoch) -> None:
        with self._lock:
            followed = self._followed[partition.tp] = _Followed(partition, leader_epoch, self._requests + 1)
            self._by_id[partition.topic_id, partition.tp.partition] = partition.tp
            self._want(followed)
            self._lock.notify()

    def remove(self, tp: TopicPartition) -> bool:
        """False when nothing is followed any more."""
        with self._lock:
            followed = self._followed.pop(tp, None)
            if followed is not None:  # else it was not added: an exception came between
                self._by_id.pop((followed.partition.topic_id, tp.partition), None)
                self._paused.discard(tp)
                self._throttled.discard(tp)
                self._session.leave_out(followed.partition.topic_id, tp.partition)
            return bool(self._followed)

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            self._followed.clear()
            self._lock.notify()
        self._loop.stop()
        self._connection.interrupt()

    def join(self) -> None:
        self._loop.join()

    def leader_ends(self) -> dict[TopicPartition, Offset]:
        with self._lock:
            return {tp: followed.committed for tp, followed in self._followed.items()}

    # --- the thread

    def _turn(self) -> bool:
        request = self._next_request()
        if request is None:
            return False
        try:
            response = self._ask(request)
        except (NetworkException, CorruptMessage) as error:
            self._could_not_ask(error)
            return True
        self._take(response)
        return True

    def _begin_anew(self, error: Exception) -> None:
        """A defect: what goes on between us and the leader, and what is asked for next, may disagree with what is
        followed. All that is kept is what is followed, and where from.
        """
        self._connection.close()
        with self._lock:
            self._session = FollowerSession()
            self._paused.clear()
            self._throttled.clear()
            self._by_id = {(f.partition.topic_id, tp.partition): tp for tp, f in self._followed.items()}
            for followed in self._followed.values():
                followed.first_request = self._requests + 1
                followed.resume_ms = None
                self._go_on(followed)

    def _next_request(self) -> FetchRequest | None:
        """Wait until there is something to ask for; None when the fetcher stops."""
        with self._lock:
            while not self._stopping:
                now_ms = self._ports.uptime_ms()
                self._resume(now_ms)
                if len(self._session):
                    self._requests += 1
                    if (epoch := self._ports.epoch()) != self._epoch:
                        # The leader notes it of what a request names, and takes nobody in whom it knows by an old one.
                        self._session.reset()
                        self._epoch = epoch
                    asked = self._session.request()
                    return FetchRequest(
                        self._wait_ms if not self._throttled else min(self._wait_ms, THROTTLE_CHECK_MS),
                        self._min_bytes,
                        asked.topics,
                        max_bytes=self._max_bytes,
                        session_id=asked.session_id,
                        session_epoch=asked.session_epoch,
                        forgotten=asked.forgotten,
                        replica_id=self._broker_id,
                        replica_epoch=epoch,
                    )
                self._lock.wait(self._pause_s(now_ms))
        return None

    def _pause_s(self, now_ms: MonotonicMs) -> float | None:
        """For how long there is nothing to do; None until a partition is added."""
        waits = [resume_ms - now_ms for tp in self._paused if (resume_ms := self._followed[tp].resume_ms) is not None]
        if self._throttled:
            waits.append(THROTTLE_CHECK_MS)
        return max(min(waits), 1) / 1000 if waits else None

    def _resume(self, now_ms: MonotonicMs) -> None:
        """Fetch those again whose pause is over, and the throttled ones once the rate allows; name moved log starts."""
        for tp in [tp for tp in self._paused if (self._followed[tp].resume_ms or 0) <= now_ms]:
            self._paused.discard(tp)
            self._followed[tp].resume_ms = None
            self._go_on(self._followed[tp])
        while self.moved_starts:
            tp = self.moved_starts.popleft()
            if tp in self._followed and tp not in self._paused and tp not in self._throttled:
                self._go_on(self._followed[tp])
        if self._throttled and self._ports.may_fetch_throttled():
            resumed, self._throttled = self._throttled, set()
            for tp in resumed:
                self._go_on(self._followed[tp])

    def _ask(self, request: FetchRequest) -> FetchResponse[memoryview]:
        connection = self._connection
        if not connection.is_connected:
            connection.connect(self.leader.host, self.leader.port)
        return connection.fetch(request)

    def _could_not_ask(self, error: RaylogError) -> None:
        """Nobody knows what the leader took in: begin anew after a pause."""
        with self._lock:
            self._session.reset()
            if self._stopping:
                return
            if str(error) != self._failed:  # else it was told before
                logger.warning("leader not reached", leader=self.leader.id, reason=error)
            self._failed = str(error)
            self._failures += 1
            self._lock.wait(self._pause_ms(self._failures) / 1000)

    def _pause_ms(self, failures: int) -> int:
        return min(FIRST_BACKOFF_MS << min(failures - 1, 16), self._backoff_ms)

    def _take(self, response: FetchResponse[memoryview]) -> None:
        """Write an answer into the logs, partition by partition: an error of one holds up no other. What must be
        durable before the next request comes after all: partitions of one log directory share the writes.
        """
        with self._lock:
            if self._stopping:
                return
            self._failed, self._failures = "", 0
            if response.error_code:
                logger.info(
                    "fetch session begun anew",
                    leader=self.leader.id,
                    reason=exception_for(response.error_code, "fetch"),
                )
                self._session.reset()
                return
            self._session.answered(response.session_id)
            sizes: dict[str, int] = {}
            taken: list[_Followed] = []
            for topic in response.topics:
                for found in topic.partitions:
                    tp = self._by_id.get((topic.topic_id, found.partition))
                    if tp is None or self._followed[tp].first_request > self._requests:
                        continue
                    size = len(found.records) if found.records else 0
                    sizes[tp.topic] = sizes.get(tp.topic, 0) + size
                    if self._take_one(self._followed[tp], found, size):
                        taken.append(self._followed[tp])
            for followed in taken:
                if self._go_on(followed):
                    followed.failures = 0
            if sizes:
                self._ports.fetched(sizes)

    def _take_one(self, followed: _Followed, found: FetchedPartition[memoryview], size: int) -> bool:
        """Write what was found of one partition, ``size`` bytes of records; whether it is fetched on at once."""
        partition, now_ms = followed.partition, self._ports.now_ms()
        tp = partition.tp
        try:
            if found.error_code:
                error = exception_for(found.error_code, f"fetching {tp}")
                partition.role.fetch_failed(error, found, followed.leader_epoch, now_ms)
            else:
                partition.role.fetched(found, followed.leader_epoch, now_ms)
            followed.committed = Offset(max(found.high_watermark, 0))
        except Exception as error:  # noqa: BLE001 (whatever it is, the other partitions go on)
            self._pause_one(followed, error)
            return False
        if self._is_throttled(followed) and not self._ports.may_fetch_throttled(size):
            followed.failures = 0
            self._throttled.add(tp)
            self._session.leave_out(partition.topic_id, tp.partition)
            return False
        return True

    def _go_on(self, followed: _Followed) -> bool:
        """Say what to fetch next of a partition, once what that tells the leader is durable. False when that failed."""
        try:
            followed.partition.role.settle()
            self._want(followed)
        except Exception as error:  # noqa: BLE001 (whatever it is, the other partitions go on)
            self._pause_one(followed, error)
            return False
        return True

    def _is_throttled(self, followed: _Followed) -> bool:
        """Whether it is to catch up slowly (KIP-73); who is in sync is held back by nobody."""
        partition = followed.partition
        replicas = partition.settings[FOLLOWER_REPLICATION_THROTTLED_REPLICAS]
        return (
            bool(replicas)
            and partition.log_end_offset < followed.committed
            and is_throttled(replicas, partition.tp.partition, self._broker_id)
        )

    def _pause_one(self, followed: _Followed, error: Exception) -> None:
        partition = followed.partition
        followed.failures += 1
        if not isinstance(error, RaylogError):
            logger.exception("fetching met a defect", partition=partition.tp, leader=self.leader.id)
        elif followed.failures == 1:
            logger.info("partition not fetched", partition=partition.tp, leader=self.leader.id, reason=error)
        self._session.leave_out(partition.topic_id, partition.tp.partition)
        if not partition.log.health.failure:  # else it waits for another disk, and this broker for another start
            followed.resume_ms = MonotonicMs(self._ports.uptime_ms() + self._pause_ms(followed.failures))
            self._paused.add(partition.tp)

    def _want(self, followed: _Followed) -> None:
        partition = followed.partition
        self._session.want(
            partition.topic_id,
            FetchPartition(
                partition.tp.partition,
                partition.log_end_offset,
                self._partition_max_bytes,
                followed.leader_epoch,
                partition.role.last_fetched_epoch,
                partition.durable_start,
            ),
        )
