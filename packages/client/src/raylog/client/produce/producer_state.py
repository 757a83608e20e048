"""◆ Exactly one copy of each batch, in order, whatever answers get lost (KIP-98, KIP-360).

A broker keeps, per partition and producer id, the epoch, the last sequence and the last five batches. It
takes the next sequence, answers a batch it has with that batch's offset, and refuses any other. So:

1. A batch gets its sequence when it is first sent and keeps it through every retry. At most five batches of a
   partition are outstanding (sent, and not known to be there or not), or a retry could fall out of the
   broker's memory.
2. Until a first batch of an (id, epoch) is acknowledged, only one is outstanding: a broker that doesn't know
   the id takes any first sequence, and a later batch must not be it.
3. Once a batch has to be retried, the partition sends one batch at a time, lowest sequence first, until the last
   of them is under way again: two leaders may be in play, and only one request at a time keeps their order.
   It waits for its backoff, which grows with how often this batch was sent: that its followers were lost with it,
   on one connection, is one failure. Once a newer leader is known, there is nothing to wait for (KIP-951).
4. A batch that fails for good after it was sent leaves a *gap*: no new sequence can be accepted. Nothing new
   is sent; the batches that are outstanding are tried under their old sequences, until either all are
   acknowledged or the lowest is refused as out of order, which proves that the broker has none of them. Then
   the epoch goes up, sequences begin at 0 again and they are sent under new ones; the higher epoch fences
   copies of the old requests that are still under way.

5. A batch that is too large for the topic was not taken: its halves go in its place, under its sequences, before
   anything behind them. A retry that is too large by now may have been taken, and then so were its halves.

The epoch is per partition, since brokers keep it per partition: one partition's trouble is not the others'.
Example: 5 and 6 and 7 are in flight; the connection dies; 5's time is up, its records fail: a gap. 6 is sent
again, as 6. "acknowledged": 5 had arrived, and so did 6; go on with 7. "Out of order": 5 never arrived, so
neither 6 nor 7 did; both are sent as 0 and 1 of the next epoch.

A topic that was deleted and made anew is another log. Records go to a topic's id (KIP-516), so none that was sent to
the one before can be in this one: what is outstanding goes there under the next epoch, one first.

A producer that goes on as another one (a :class:`Continuation`) must number its records as that one did, or the same
record would be there under two numbers. It never takes the next epoch: its first gap is its end, and so is a topic made
anew, which lacks what was sent before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from raylog.client.batches.accumulator import Batch, BatchState
from raylog.client.network.metadata import backoff_ms
from raylog.protocol.errors import (
    CorruptMessage,
    InvalidProducerEpoch,
    NetworkException,
    OutOfOrderSequence,
    RaylogError,
    UnknownProducerId,
    UnknownTopicId,
    is_retriable,
)
from raylog.protocol.ids import NO_TOPIC_ID, LeaderEpoch, TopicId, TopicName, TopicPartition

MAX_EPOCH = 32_767
_NOT_IN_SEQUENCE = (OutOfOrderSequence, UnknownProducerId, InvalidProducerEpoch)
_SEQUENCES = 1 << 31


class Identity(NamedTuple):
    """A producer id and its epoch, as brokers know an idempotent producer."""

    producer_id: int
    epoch: int


NO_IDENTITY = Identity(-1, -1)


class Continuation(NamedTuple):
    """Where a producer takes over from one that may have died, or may still be sending the same records.

    ``next_sequences``: the sequence of the first record to send to each partition, 0 where it isn't named. A record
    has to get the number that it had before: then brokers take it once, whoever sends it and how often (KIP-98).
    ``topic_ids``: the topics that have what was sent before; where one isn't named, whichever has the name at first.
    """

    identity: Identity
    next_sequences: Mapping[TopicPartition, int]
    topic_ids: Mapping[TopicName, TopicId] = {}


class RetryPolicy(NamedTuple):
    """``retries``: how often one batch is sent again. ``window``: batches of a partition that may be
    outstanding."""

    retries: int
    backoff_ms: int
    backoff_max_ms: int
    window: int


class PartitionState:
    """The outstanding batches of one partition, in sequence order. Not thread-safe."""

    __slots__ = (
        "_acknowledged",
        "_continued",
        "_gap",
        "_idempotent",
        "_in_flight",
        "_next_sequence",
        "_policy",
        "_retry_at_ms",
        "identity",
        "outstanding",
        "topic_id",
        "tp",
    )

    def __init__(
        self, tp: TopicPartition, *, idempotent: bool, policy: RetryPolicy, continues: Continuation | None = None
    ) -> None:
        self.tp = tp
        self.outstanding: list[Batch[Any]] = []
        self.identity: Identity | None = None if idempotent else NO_IDENTITY
        """None while an idempotent producer has no id to send with."""
        self.topic_id: TopicId = NO_TOPIC_ID
        """The topic that the outstanding batches were sent to."""
        self._idempotent = idempotent
        self._policy = policy
        self._in_flight = 0
        self._next_sequence = 0
        self._acknowledged = not idempotent
        self._gap = False
        self._retry_at_ms = 0
        self._continued = continues is not None
        if continues is not None:
            self.identify(continues.identity, continues.next_sequences.get(tp, 0))
            self.topic_id = continues.topic_ids.get(tp.topic, NO_TOPIC_ID)

    @property
    def retrying(self) -> bool:
        """True while a batch waits to be sent again."""
        return len(self.outstanding) > self._in_flight

    def in_flight(self) -> list[Batch[Any]]:
        """The batches whose answers are awaited."""
        return [batch for batch in self.outstanding if batch.state is BatchState.IN_FLIGHT]

    def identify(self, identity: Identity, next_sequence: int = 0) -> None:
        """Send as ``identity`` from now on, with sequences from there. Only while nothing is in flight."""
        self.identity = identity
        self._next_sequence = next_sequence % _SEQUENCES
        self._acknowledged = False
        self._gap = False
        for batch in self.outstanding:
            self._assign(batch)

    def turn_to(self, topic_id: TopicId) -> bool:
        """Send to the topic of that id, which the name means now (NO_TOPIC_ID: not known). False while answers from the
        one before are awaited.

        A batch whose answer got lost is sent to the new topic, too. If that was the topic before the last one, since
        a broker that lags told another id in between, it may have the batch already. Raises UnknownTopicId for a
        continued producer whose topic was made anew.
        """
        if topic_id in (self.topic_id, NO_TOPIC_ID):
            return True
        if self.topic_id != NO_TOPIC_ID:
            if self._continued:
                raise UnknownTopicId(
                    f"{self.tp}: its topic (id {self.topic_id}) is gone with what was sent before; in the one that was "
                    f"made anew (id {topic_id}) this producer cannot go on"
                )
            if self._in_flight:
                return False
            self._retry_at_ms = 0
            self._acknowledged = not self._idempotent
            if self._idempotent and self.identity is not None:
                self._take_next_epoch(self.identity)
        self.topic_id = topic_id
        return True

    def sendable(self, fresh: Batch[Any] | None, now_ms: int, leader_epoch: LeaderEpoch) -> Batch[Any] | None:
        """The batch to send now to the leader of ``leader_epoch``: one to retry, or ``fresh``, the oldest one never
        sent; None when it must wait."""
        if self.identity is None:
            return None
        if self.retrying:
            lowest = self.outstanding[0]
            if self._in_flight or (now_ms < self._retry_at_ms and leader_epoch <= lowest.leader_epoch):
                return None
            return lowest
        window = self._policy.window if self._acknowledged else 1
        if self._gap or len(self.outstanding) >= window:
            return None
        return fresh

    def retry_in_ms(self, now_ms: int) -> int | None:
        """How long until :meth:`sendable` gives the batch to retry, unless a newer leader turns up; None when an answer
        is awaited before that, or when there is none."""
        return max(0, self._retry_at_ms - now_ms) if self.retrying and not self._in_flight else None

    def sent(self, batch: Batch[Any], leader_epoch: LeaderEpoch) -> None:
        """``batch``, which :meth:`sendable` gave, goes out to the leader of ``leader_epoch``."""
        if batch.state is BatchState.QUEUED:
            self.outstanding.append(batch)
            if self._idempotent:
                self._assign(batch)
        batch.state = BatchState.IN_FLIGHT
        batch.attempts += 1
        batch.leader_epoch = leader_epoch
        self._in_flight += 1

    def succeeded(self, batch: Batch[Any]) -> None:
        """The broker has ``batch``."""
        self._in_flight -= 1
        self._acknowledged = True
        self._remove(batch)
        self._heal()

    def failed(self, batch: Batch[Any], error: RaylogError, now_ms: int) -> bool:
        """The broker refused ``batch``, or no answer came (NetworkException). True when it will be tried
        again."""
        self._in_flight -= 1
        batch.state = BatchState.RETRY
        again = self._may_retry(batch, error)
        if again:
            lowest = self.outstanding[0]
            pause_ms = backoff_ms(lowest.attempts, self._policy.backoff_ms, self._policy.backoff_max_ms)
            self._retry_at_ms = now_ms + pause_ms
        else:
            self._remove(batch)
            self._gap = self._idempotent
        self._heal()
        return again

    def split(self, batch: Batch[Any], parts: Sequence[Batch[Any]]) -> None:
        """The broker refused ``batch`` as too large: its ``parts`` go in its place, one after the other."""
        self._in_flight -= 1
        at = self.outstanding.index(batch)
        self.outstanding[at : at + 1] = parts
        batch.state = BatchState.DONE
        sequence = batch.sequence
        for part in parts if self._idempotent else ():
            part.sequence = sequence
            sequence = (sequence + part.count) % _SEQUENCES
        if at == 0:
            self._retry_at_ms = 0
        self._heal()

    def expire(self, batch: Batch[Any]) -> bool:
        """The delivery timeout of ``batch`` is over. True when it is done with; False while an answer is
        awaited."""
        if batch.state is BatchState.IN_FLIGHT:
            batch.abandoned = True
            return False
        self._remove(batch)
        self._gap = self._idempotent
        self._heal()
        return True

    def _may_retry(self, batch: Batch[Any], error: RaylogError) -> bool:
        if self._idempotent and isinstance(error, _NOT_IN_SEQUENCE):
            # Not the lowest: the lower ones must get there first. The lowest: the broker has none of them.
            if batch is self.outstanding[0]:
                if self._continued:
                    return False
                batch.rejected = True
                self._gap = True
        elif not isinstance(error, NetworkException | CorruptMessage) and not is_retriable(error):
            return False
        return not batch.abandoned and batch.attempts <= self._policy.retries

    def _heal(self) -> None:
        """Close a gap under the next epoch, once no outstanding batch can be at the broker."""
        if not self._gap or self._in_flight or (self.outstanding and not self.outstanding[0].rejected):
            return
        if self._continued:
            return
        if self.identity is not None:
            self._take_next_epoch(self.identity)

    def _take_next_epoch(self, identity: Identity) -> None:
        if identity.epoch >= MAX_EPOCH:
            self.identity = None  # the epochs of this id are used up: wait for another id
        else:
            self.identify(Identity(identity.producer_id, identity.epoch + 1))

    def _assign(self, batch: Batch[Any]) -> None:
        batch.sequence = self._next_sequence
        batch.rejected = False
        self._next_sequence = (self._next_sequence + batch.count) % _SEQUENCES

    def _remove(self, batch: Batch[Any]) -> None:
        self.outstanding.remove(batch)
        batch.state = BatchState.DONE
