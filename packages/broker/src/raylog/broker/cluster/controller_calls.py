"""What other threads ask of a broker's controller: each call becomes an item in the queue of the controller's thread.

Handlers and other brokers' proposals wait for their answer; hints do not.
"""

from __future__ import annotations

import queue
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

from raylog.coordination.control.proposals import Verdict, decode_proposal
from raylog.coordination.controller import events as core
from raylog.coordination.controller.pending_proposals import refusal
from raylog.coordination.controller.pending_requests import Request, Result
from raylog.coordination.host.clocks import monotonic_ms
from raylog.coordination.metadata.model import NO_CONTROLLER_EPOCH
from raylog.coordination.store.port import StoreEvent
from raylog.protocol.errors import NotController, RequestTimedOut
from raylog.protocol.ids import BrokerEpoch, BrokerId, MonotonicMs, TopicId, TopicName, TopicPartition

__all__ = [
    "Asked",
    "AskedToDecide",
    "Compare",
    "ControllerCalls",
    "Item",
    "Results",
    "SeemsDead",
    "Stop",
]

PROPOSAL_TIMEOUT_S = 10.0
REPLY_GRACE_S = 2.0
"""How much longer than its deadline a request waits for the machine to say that the deadline is over."""

Results: TypeAlias = tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """A handler's request, and where its answer goes."""

    event: Request
    answer: Future[Results]


class Stop:
    """Ends the thread."""


class Compare:
    """Compares with the store."""


@dataclass(frozen=True, slots=True)
class AskedToDecide:
    """A broker's proposal, and where its answer goes."""

    event: core.Proposed
    answer: Future[bytes]


@dataclass(frozen=True, slots=True)
class SeemsDead:
    """This incarnation of a broker seems dead: a hint."""

    broker_id: BrokerId
    epoch: BrokerEpoch


Item: TypeAlias = "StoreEvent | core.Event | Asked | AskedToDecide | SeemsDead | Compare | Stop"


class ControllerCalls:
    """The calls; any thread may make them."""

    def __init__(self, broker_id: BrokerId, is_active: Callable[[], bool], inbox: queue.SimpleQueue[Item]) -> None:
        """``is_active``: whether this broker is the controller, as far as it knows. ``inbox``: of its thread."""
        self._broker_id = broker_id
        self._is_active = is_active
        self.queue = inbox
        """Where the calls go; the store's events come here, too."""
        self.is_over = False
        """Set by the thread when it has ended."""

    def create_topics(self, topics: Sequence[core.NewTopic], *, timeout_ms: int, validate_only: bool) -> Results:
        """One result per topic. Raises NotController, RequestTimedOut."""
        ids = tuple(TopicId(uuid.uuid4()) for _ in topics)
        return self._ask(
            core.TopicCreateRequested(uuid.uuid4(), tuple(topics), ids, _deadline(timeout_ms), validate_only),
            timeout_ms,
        )

    def delete_topics(self, topics: Sequence[TopicName | TopicId], *, timeout_ms: int) -> Results:
        """One result per topic. Raises NotController, RequestTimedOut."""
        return self._ask(core.TopicDeleteRequested(uuid.uuid4(), tuple(topics), _deadline(timeout_ms)), timeout_ms)

    def create_partitions(
        self, topics: Sequence[core.NewPartitions], *, timeout_ms: int, validate_only: bool
    ) -> Results:
        """One result per topic. Raises NotController, RequestTimedOut."""
        event = core.PartitionsCreateRequested(uuid.uuid4(), tuple(topics), _deadline(timeout_ms), validate_only)
        return self._ask(event, timeout_ms)

    def elect_leaders(self, partitions: Sequence[TopicPartition], *, unclean: bool, timeout_ms: int) -> Results:
        """One result per partition. Raises NotController, RequestTimedOut."""
        return self._ask(
            core.ElectionRequested(uuid.uuid4(), tuple(partitions), _deadline(timeout_ms), unclean), timeout_ms
        )

    def reassign(
        self, partitions: Sequence[core.NewReplicas], *, timeout_ms: int, allow_factor_change: bool
    ) -> Results:
        """One result per partition. Raises NotController, RequestTimedOut."""
        event = core.ReassignmentRequested(uuid.uuid4(), tuple(partitions), _deadline(timeout_ms), allow_factor_change)
        return self._ask(event, timeout_ms)

    def seems_dead(self, broker_id: BrokerId, epoch: BrokerEpoch) -> None:
        """Take a hint (D9) about this incarnation of another broker. Does not block."""
        self.queue.put(SeemsDead(broker_id, epoch))

    def reconcile(self) -> None:
        """Compare with the store now, and not only every so often. Does not block."""
        self.queue.put(Compare())

    def propose(self, payload: bytes) -> bytes:
        """A broker's proposal (``proposals``) and its answer, also when this is no controller.

        Raises InvalidRequest when it is none, RequestTimedOut.
        """
        event = core.Proposed(uuid.uuid4(), decode_proposal(payload))
        answer: Future[bytes] = Future()
        self.queue.put(AskedToDecide(event, answer))
        if self.is_over:
            self.refuse_what_waits()
        try:
            return answer.result(PROPOSAL_TIMEOUT_S)
        except TimeoutError:
            raise RequestTimedOut(f"the controller did not decide within {PROPOSAL_TIMEOUT_S:g} s") from None

    def _ask(self, event: Request, timeout_ms: int) -> Results:
        if not self._is_active():
            raise NotController(f"broker {self._broker_id} is not the controller")
        answer: Future[Results] = Future()
        self.queue.put(Asked(event, answer))
        if self.is_over:
            self.refuse_what_waits()
        try:
            return answer.result(max(timeout_ms, 0) / 1000 + REPLY_GRACE_S)
        except TimeoutError:
            raise RequestTimedOut(f"the controller did not answer within {timeout_ms} ms") from None

    def refuse_what_waits(self) -> None:
        """The thread has ended: nobody takes in what came since, so any thread says no to it."""
        while True:
            try:
                item = self.queue.get_nowait()
            except queue.Empty:
                return
            if isinstance(item, Asked):
                item.answer.set_exception(NotController(f"broker {self._broker_id} has stopped"))
            elif isinstance(item, AskedToDecide):
                no = refusal(item.event.proposal, Verdict.NOT_CONTROLLER, NO_CONTROLLER_EPOCH)
                item.answer.set_result(no.encode())


def _deadline(timeout_ms: int) -> MonotonicMs:
    return MonotonicMs(monotonic_ms() + max(timeout_ms, 0))
