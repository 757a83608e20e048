"""The producer's sender: takes batches out of the accumulator, sends them, and settles what came of them.

A thread of the producer's, or an event loop, calls :meth:`Sender.step` over and over. Everything the cores decide
happens under the producer's one lock, per batch and never per record; encoding, the network and the resolving of
deliveries (whose callbacks may send again) happen outside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple

from raylog.client.batches.accumulator import Accumulator, Batch, BatchState
from raylog.client.config.client import (
    DELIVERY_TIMEOUT_MS,
    MAX_IN_FLIGHT,
    MAX_REQUEST_SIZE,
    REQUEST_TIMEOUT_MS,
    RETRIES,
    RETRY_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
    producer_guarantees,
)
from raylog.client.config.compression import compression
from raylog.client.delivery import BatchOutcome
from raylog.client.network.connection import Address, Reply
from raylog.client.network.network import CONNECT_POLL_MS, Network
from raylog.client.produce.batch_bytes import PRODUCE_VERSION, Sent, encode, error_of, read_produced, unfit
from raylog.client.produce.identity import IdentityKeeper
from raylog.client.produce.producer_partitions import ProducerPartitions
from raylog.client.produce.producer_state import NO_IDENTITY, Continuation, PartitionState, RetryPolicy
from raylog.client.telemetry.metrics import SendCounts
from raylog.coordination.host.clocks import monotonic_ms
from raylog.protocol.errors import (
    DuplicateSequence,
    MessageTooLarge,
    NetworkException,
    RaylogError,
    RecordListTooLarge,
    RequestTimedOut,
    UnknownTopicId,
    UnsupportedVersion,
    is_retriable,
)
from raylog.protocol.ids import TopicId, TopicName, TopicPartition
from raylog.protocol.settings import Settings
from raylog.protocol.wire.produce import (
    API_KEY,
    PartitionRecords,
    ProducedPartition,
    ProduceRequest,
    TopicRecords,
    encode_produce_request,
)

_IDLE_MS = 60_000
_AGAIN = "%d records to %s, sent to broker %s, are sent again: %s"
_FAILED = "%d records to %s were not delivered: %s"
_HALVED = "%s; its records are sent in smaller ones: set a smaller batch.size"
_TOO_LARGE = (MessageTooLarge, RecordListTooLarge)


class _Settled(NamedTuple):
    """A batch whose outcome is known and whose owners are still to be told."""

    batch: Batch[BatchOutcome]
    base_offset: int
    append_time: int
    error: RaylogError | None


class _Plan(NamedTuple):
    """A request to send: at most one batch per partition."""

    address: Address
    batches: list[Batch[BatchOutcome]]


class Sender:
    """Owns the network and every :class:`PartitionState`.

    ``lock`` guards the accumulator and the states; ``tell_news`` is called under it when memory or metadata came.
    """

    def __init__(
        self,
        settings: Settings,
        network: Network,
        accumulator: Accumulator[BatchOutcome],
        lock: AbstractContextManager[object],
        tell_news: Callable[[], None],
        continues: Continuation | None = None,
    ) -> None:
        self._acks, self._idempotent = producer_guarantees(settings)
        self._network = network
        self._accumulator = accumulator
        self._lock = lock
        self._tell_news = tell_news
        self._compression = compression(settings)
        self._max_request_size = settings[MAX_REQUEST_SIZE]
        self._max_in_flight = settings[MAX_IN_FLIGHT]
        self._delivery_timeout_ms = settings[DELIVERY_TIMEOUT_MS]
        self._request_timeout_ms = min(settings[REQUEST_TIMEOUT_MS], self._delivery_timeout_ms)
        self._backoff = (settings[RETRY_BACKOFF_MS], settings[RETRY_BACKOFF_MAX_MS])
        self._states = ProducerPartitions(
            idempotent=self._idempotent,
            policy=RetryPolicy(settings[RETRIES], *self._backoff, window=self._max_in_flight),
            continues=continues,
        )
        self._continues = continues
        self._looked_through = 0
        """How often all topics had been asked for when those that are idle were forgotten last."""
        self._log = network.pool.log
        self._identities = IdentityKeeper(network, self._backoff)
        self.fatal: RaylogError | None = None
        """Why nothing can be sent any more."""
        self.counts = SendCounts()
        self.wakes_at_ms = 0
        """When the next step is due by itself; who needs it earlier wakes the pool."""

    def step(self, *, wait_ms: float = _IDLE_MS) -> float:
        """One round: send what can be sent, wait at most ``wait_ms`` for news, and take them in.

        Returns how long, in ms, there will be nothing to do unless the pool's descriptor becomes readable. What it
        raises is a defect: log it, :meth:`mend`, and go on after a pause.
        """
        try:
            return self._round(wait_ms)
        except (UnsupportedVersion, UnknownTopicId) as error:
            self._network.reset()
            self._give_up(error)  # that will not pass
            return _IDLE_MS

    def _round(self, wait_ms: float) -> float:
        now_ms = monotonic_ms()
        settled: list[_Settled] = []
        try:
            with self._lock:
                self._expire(now_ms, settled)
                plans, due_ms = self._drain(now_ms)
                self.wakes_at_ms = now_ms + due_ms
        finally:
            self._tell(settled)
        for plan in plans:
            self._send(plan)
        version = self._network.metadata.view.version
        replies = self._network.poll(min(wait_ms, due_ms))
        for reply in replies:
            if reply.request.context is self._identities.context:
                self._take_identity(reply)
            else:
                self._take_produced(reply)
        if self._network.metadata.view.version != version:
            with self._lock:
                self._forget_idle()
                self._tell_news()
            return 0
        return 0 if replies else self._network.wait_ms(due_ms)

    def _forget_idle(self) -> None:
        metadata = self._network.metadata
        if metadata.whole_answers != self._looked_through:
            self._looked_through = metadata.whole_answers
            self._states.forget(metadata.is_kept, self._accumulator.waiting)

    def mend(self) -> None:
        """After a step that raised: nobody knows what it left half done, so all connections are made anew, and the
        batches that were under way are sent again.
        """
        self._network.reset()
        self._identities.reset()
        lost = NetworkException("the sender failed, as the log says")
        with self._lock:
            under_way = self._states.in_flight()
        self._settle([(batch, lost) for batch in under_way])

    def finish(self, error: RaylogError) -> None:
        """Fail what isn't settled, with ``error``, and close all connections. After the last step."""
        self._fail_all(error)
        self._network.close()

    def unwritten(self) -> bool:
        """True while something that counts as delivered (acks=0) has not left for its socket."""
        return self._acks == 0 and self._network.pool.unwritten()

    def _drain(self, now_ms: int) -> tuple[list[_Plan], int]:
        """Requests that brokers can take now, and how long to wait for more to do, in ms."""
        wait_ms = _IDLE_MS
        for batch in self._accumulator.incomplete:
            if not batch.abandoned:  # those that are have failed: nothing falls due
                wait_ms = max(0, batch.created_ms + self._delivery_timeout_ms - now_ms)
                break
        plans: list[_Plan] = []
        slots: dict[Address, int] = {}
        while True:
            requests, wait_ms = self._drain_once(now_ms, slots, wait_ms)
            if not requests:
                return plans, wait_ms
            plans += requests

    def _drain_once(self, now_ms: int, slots: dict[Address, int], wait_ms: int) -> tuple[list[_Plan], int]:
        """At most one request per broker that has slots left, and one batch per partition."""
        requests: dict[Address, _Plan] = {}
        view = self._network.metadata.view
        for state in self._candidates():
            fresh = self._accumulator.ready(state.tp, now_ms)
            _, leader_epoch = view.leader_of(state.tp)
            has_turned = state.turn_to(view.topic_id(state.tp.topic))
            batch = state.sendable(fresh, now_ms, leader_epoch) if has_turned else None
            if batch is None:
                wait_ms = min(wait_ms, self._wait_ms(state, fresh, now_ms))
                continue
            address = self._network.leader_address(state.tp)
            if address is None or not self._network.ready(address):
                wait_ms = min(wait_ms, CONNECT_POLL_MS)
                continue
            if address not in slots:
                slots[address] = self._network.pool.capacity(address, self._max_in_flight)
            plan = requests.get(address)
            if plan is None:
                if not slots[address]:
                    continue
                slots[address] -= 1
                plan = requests[address] = _Plan(address, [])
            elif sum(planned.size for planned in plan.batches) + batch.size > self._max_request_size:
                continue
            if batch is fresh:
                self._accumulator.take(batch)
            state.sent(batch, leader_epoch)
            plan.batches.append(batch)
        return list(requests.values()), wait_ms

    def _candidates(self) -> Iterable[PartitionState]:
        """Partitions with something to send or to send again."""
        return () if self.fatal is not None else self._states.candidates(self._accumulator.waiting)

    def _wait_ms(self, state: PartitionState, fresh: Batch[BatchOutcome] | None, now_ms: int) -> int:
        """How long until this partition, which has nothing to send now, may have."""
        if state.identity is None:
            self._identities.ask()
            return CONNECT_POLL_MS
        if state.retrying:
            retry_ms = state.retry_in_ms(now_ms)
            return _IDLE_MS if retry_ms is None else max(1, retry_ms)
        linger_ms = self._accumulator.linger_left_ms(state.tp, now_ms) if fresh is None else None
        return _IDLE_MS if linger_ms is None else max(1, linger_ms)

    def _expire(self, now_ms: int, settled: list[_Settled]) -> None:
        for batch in self._accumulator.older_than(now_ms - self._delivery_timeout_ms):
            if batch.abandoned:
                continue
            why = batch.last_error or self._network.metadata.view.errors.get(batch.tp.topic)
            error = RequestTimedOut(
                f"{batch.tp}: {batch.count} records were not delivered within "
                f"{self._delivery_timeout_ms} ms ({why or 'no broker could take them'})"
            )
            if batch.state is BatchState.QUEUED:
                self._accumulator.take(batch)
                self._accumulator.release(batch)
            elif self._states[batch.tp].expire(batch):
                self._accumulator.release(batch)
            settled.append(_Settled(batch, -1, -1, error))

    def _send(self, plan: _Plan) -> None:
        by_topic: dict[tuple[TopicName, TopicId], list[PartitionRecords]] = {}
        sent: dict[TopicPartition, Batch[BatchOutcome]] = {}
        sizes: list[int] = []
        for batch in plan.batches:
            state = self._states[batch.tp]
            try:
                data = encode(batch, state.identity or NO_IDENTITY, self._compression)
            except Exception as error:  # noqa: BLE001 (it is told, and concerns this batch alone)
                self._settle([(batch, unfit(str(batch.tp), error))])
                continue
            name, index = batch.tp
            by_topic.setdefault((name, state.topic_id), []).append(PartitionRecords(index, data))
            sent[batch.tp] = batch
            sizes.append(len(data))
        if not sent:
            return
        request = ProduceRequest(
            None,
            self._acks,
            self._request_timeout_ms,
            [TopicRecords(name, topic_id, partitions) for (name, topic_id), partitions in by_topic.items()],
        )
        try:
            self._network.pool.send(
                plan.address,
                API_KEY,
                PRODUCE_VERSION,
                lambda correlation_id: encode_produce_request(
                    PRODUCE_VERSION,
                    request,
                    correlation_id=correlation_id,
                    client_id=self._network.pool.client_id,
                ),
                Sent(sent, dict(by_topic.keys()), plan.address),
                timeout_ms=self._request_timeout_ms,
                expects_reply=self._acks != 0,
            )
        except Exception as error:  # noqa: BLE001 (it is told, and concerns these batches alone)
            failure = unfit(f"a request to {plan.address}", error)
            self._settle([(batch, failure) for batch in sent.values()])
            return
        self.counts.requested(sum(batch.count for batch in sent.values()), sizes, monotonic_ms())
        if self._acks == 0:
            self._settle([(batch, ProducedPartition(tp.partition)) for tp, batch in sent.items()])

    def _take_produced(self, reply: Reply) -> None:
        sent: Sent = reply.request.context
        answers, endpoints = read_produced(reply.frame, reply.error, sent)
        for tp, answer in answers.items():
            if isinstance(answer, ProducedPartition) and answer.leader_id >= 0:
                # The broker doesn't lead the partition and says who does: go there at once.
                self._network.take_hint(tp, sent.ids[tp.topic], answer.leader_id, answer.leader_epoch, endpoints)
        self._settle([(sent.batches[tp], answer) for tp, answer in answers.items()], sent.address)

    def _settle(
        self,
        results: list[tuple[Batch[BatchOutcome], ProducedPartition | RaylogError]],
        at: Address | None = None,
    ) -> None:
        """Take in what the broker ``at`` said of batches, or that none did, and tell who waits for it."""
        now_ms = monotonic_ms()
        settled: list[_Settled] = []
        with self._lock:
            if self.fatal is not None:
                return  # all were told that they have failed
            for batch, result in results:
                state = self._states[batch.tp]
                error = result if isinstance(result, RaylogError) else error_of(batch.tp, result)
                if error is None or isinstance(error, DuplicateSequence):
                    state.succeeded(batch)
                    base_offset, append_time = -1, -1
                    if isinstance(result, ProducedPartition):
                        base_offset, append_time = result.base_offset, result.log_append_time
                    done = _Settled(batch, base_offset, append_time, None)
                else:
                    batch.last_error = error
                    if isinstance(error, _TOO_LARGE) and batch.count > 1 and not batch.abandoned:
                        self._split(batch)
                        continue
                    metadata = self._network.metadata
                    if isinstance(error, UnknownTopicId):
                        metadata.refused(batch.tp.topic, state.topic_id)
                    if is_retriable(error) and metadata.view.leader_of(batch.tp)[1] <= batch.leader_epoch:
                        metadata.need_update()
                    if state.failed(batch, error, now_ms):
                        self.counts.retried += batch.count
                        self._log.warning(("again", type(error)), _AGAIN, batch.count, batch.tp, at, error)
                        continue
                    done = _Settled(batch, -1, -1, error)
                self._accumulator.release(batch)
                if not batch.abandoned:
                    settled.append(done)
            self._tell_news()
        self._tell(settled)

    def _split(self, batch: Batch[BatchOutcome]) -> None:
        """The topic takes no batch of that size: send its halves, as Java's client does (KIP-126)."""
        self._log.warning(("halved", batch.tp.topic), _HALVED, batch.last_error)
        self.counts.split += 1
        self._states[batch.tp].split(batch, self._accumulator.split(batch, batch.outcome.split))

    def _tell(self, settled: list[_Settled]) -> None:
        for batch, base_offset, append_time, error in settled:
            if error is None:
                batch.outcome.succeed(base_offset, append_time)
                continue
            if self.fatal is None:
                self._log.warning(("failed", type(error)), _FAILED, batch.count, batch.tp, error)
                if self._continues is not None:  # what comes behind this batch has no place any more
                    self._give_up(error, batch)
                    continue
            self.counts.failed += batch.count
            batch.outcome.fail(error)

    def _give_up(self, error: RaylogError, *first: Batch[BatchOutcome]) -> None:
        self._log.error("fatal", "nothing can be sent any more, make another producer: %s", error)
        self._fail_all(error, *first)

    def _fail_all(self, error: RaylogError, *first: Batch[BatchOutcome]) -> None:
        with self._lock:
            self.fatal = error  # before anybody hears of it and sends more
            lost = [*first, *(batch for batch in self._accumulator.incomplete if not batch.abandoned)]
            self._accumulator.clear()
            self._tell_news()
        self._tell([_Settled(batch, -1, -1, error) for batch in lost])

    def _take_identity(self, reply: Reply) -> None:
        try:
            identity = self._identities.take(reply)
        except RaylogError as error:
            self._give_up(error)
            return
        if identity is not None:
            with self._lock:
                self._states.identify(identity)
