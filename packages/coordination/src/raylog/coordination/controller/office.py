"""What a controller works with while it is in office: the cluster's state, its writes, and what it tells brokers.

The jobs (``controller.topics``, ``controller.leaders`` …) are generators: each decides on the state of its moment,
yields the Writes that it needs, and takes what was written into the state.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from dataclasses import replace
from enum import Enum

from raylog.coordination.control.leadership import Change
from raylog.coordination.controller.events import Effect, Notice, Remove, Wanted, Write
from raylog.coordination.controller.handovers import Handovers
from raylog.coordination.controller.peers import Peers
from raylog.coordination.controller.writes import Writes
from raylog.coordination.metadata import paths
from raylog.coordination.metadata.model import ClusterState, TopicState
from raylog.coordination.store.port import (
    BadVersion,
    NodeExists,
    NoNode,
    Op,
    StoreClosed,
    StoreError,
    StoreUnavailable,
)
from raylog.protocol.ids import MonotonicMs, TopicName


class Doubt(Enum):
    """Whether the state may differ from what the store holds."""

    NONE = 0
    CHANGED = 1  # somebody wrote: read again at once
    UNKNOWN = 2  # no answer, or a surprising one: read again at the next tick, lest it goes round in circles
    RELOADING = 3


FIRST_WAIT_MS, LAST_WAIT_MS = 100, 5_000


class Reloads:
    """When to read everything again: the first time at once, then ever later while what follows from it fails again."""

    def __init__(self) -> None:
        self._now_ms = self._not_before_ms = MonotonicMs(0)
        self._in_a_row = 0

    def tick(self, now_ms: MonotonicMs) -> None:
        self._now_ms = now_ms

    @property
    def is_due(self) -> bool:
        return self._now_ms >= self._not_before_ms

    def begun(self) -> None:
        """It is read again now."""
        wait_ms = min(FIRST_WAIT_MS << self._in_a_row, LAST_WAIT_MS) if self._in_a_row else 0
        self._not_before_ms = MonotonicMs(self._now_ms + wait_ms)
        self._in_a_row = min(self._in_a_row + 1, 10)

    def settled(self) -> None:
        """What was read was taken in, and all that follows from it done."""
        self._in_a_row = 0


class Aborted(Exception):
    """A write failed in a way that ends the job: we step down, or read everything again."""


Job = Generator[Wanted, StoreError | None, None]
WriteOutcome = Generator[Wanted, StoreError | None, StoreError | None]


def is_refusal(error: StoreError | None) -> bool:
    """Whether the store refuses the write for good, by what stands there: its access rights, or an ephemeral parent."""
    return error is not None and not isinstance(
        error, BadVersion | NodeExists | NoNode | StoreUnavailable | StoreClosed
    )


class Office:
    """One mandate's. Only jobs write, one at a time."""

    def __init__(self, state: ClusterState, writes: Writes, effects: list[Effect], peers: Peers) -> None:
        """``state`` names the controller; ``effects``: where notices go."""
        self.state = state
        self.writes = writes
        self.peers = peers
        self.handovers = Handovers(peers)
        self.moving: set[TopicName] = set()
        """Topics with a reassignment under way."""
        self.doubt = Doubt.NONE
        self.reloads = Reloads()
        self.is_deposed = False
        """A write was fenced: another controller was elected."""
        self.effects = effects
        self.token = 0
        """Of the last Write."""

    def write(
        self,
        multis: Iterable[tuple[Op, ...]],
        *,
        expected: tuple[type[StoreError], ...] = (),
        may_be_refused: bool = False,
    ) -> WriteOutcome:
        """Carry the multis out, if any, each under the controller's epoch: this is the one way in which it writes.
        Answers None, or the error when it is an ``expected`` one, or a refusal (:func:`is_refusal`) that may be.
        """
        if not (multis := tuple((*self.writes.mandate(), *multi) for multi in multis)):
            return None
        self.token += 1
        return (yield from self._done(Write(self.token, multis), expected, may_be_refused=may_be_refused))

    def remove(
        self, *nodes: str, expected: tuple[type[StoreError], ...] = (), may_be_refused: bool = False
    ) -> WriteOutcome:
        """Remove nodes, each with all below it, whoever made that; answers as :meth:`write`."""
        self.token += 1
        effect = Remove(self.token, nodes, self.writes.mandate())
        return (yield from self._done(effect, expected, may_be_refused=may_be_refused))

    def _done(self, effect: Wanted, expected: tuple[type[StoreError], ...], *, may_be_refused: bool) -> WriteOutcome:
        error = yield effect
        is_fenced = isinstance(error, BadVersion | NoNode) and error.path == paths.CONTROLLER_EPOCH
        if error is None or (isinstance(error, expected) and not is_fenced) or (may_be_refused and is_refusal(error)):
            return error
        if is_fenced:
            self.is_deposed = True
        elif isinstance(error, BadVersion):
            self.doubt = Doubt.CHANGED
        else:
            self.doubt = Doubt.UNKNOWN
            text = "the store refused or did not confirm a write of the controller: everything is read again"
            self.effects.append(Notice(text, {"path": error.path, "reason": error}))
        raise Aborted from error

    def now(self, state: ClusterState, *topics: TopicName) -> None:
        """This is the state from now on; it differs in these topics."""
        self.state = state
        for name in topics:
            topic = state.topics.get(name)
            if topic is not None and any(partition.adding or partition.removing for partition in topic.partitions):
                self.moving.add(name)
            else:
                self.moving.discard(name)
        self.peers.changed(topics)

    def take_in(self, changes: Collection[Change]) -> None:
        """These were written."""
        by_topic: dict[TopicName, list[Change]] = {}
        for change in changes:
            by_topic.setdefault(change.tp.topic, []).append(change)
            if change.risk:
                self.effects.append(_notice(change))
        if by_topic:
            topics = [_changed(self.state.topics[name], of_it) for name, of_it in by_topic.items()]
            self.now(self.state.with_topics(*topics), *by_topic)
            self.handovers.decided(changes)


def _changed(topic: TopicState, changes: Iterable[Change]) -> TopicState:
    """One rebuild, however many partitions change."""
    partitions = list(topic.partitions)
    for change in changes:
        partitions[change.tp.partition] = replace(change.new, version=change.old.version + 1)
    return replace(topic, partitions=tuple(partitions))


def _notice(change: Change) -> Notice:
    return Notice(
        "leader elected at the risk of losing acknowledged records",
        {
            "partition": change.tp,
            "leader": change.new.leader,
            "leader_epoch": change.new.leader_epoch,
            "isr_before": change.old.isr,
            "reason": change.risk,
        },
    )
