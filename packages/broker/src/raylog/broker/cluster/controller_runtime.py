"""Runs the controller on the broker that is elected: the shell around ``coordination.controller``.

One thread owns the machine and the election. Everything reaches it through one queue: the store's events,
requests of handlers, and what the sender threads got back. It never waits for a broker: each broker has a
sender thread, which delivers messages one at a time and in order.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from raylog.broker.cluster.controller_calls import (
    Asked,
    AskedToDecide,
    Compare,
    ControllerCalls,
    Item,
    Results,
    SeemsDead,
    Stop,
)
from raylog.broker.cluster.controller_sender import Sender
from raylog.broker.events import EventLog
from raylog.coordination.control.leadership import ElectionRules
from raylog.coordination.control.peer_control import PeerControl, UpdateState
from raylog.coordination.controller import events as core
from raylog.coordination.controller.controller import Controller
from raylog.coordination.host.clocks import monotonic_ms, wall_ms
from raylog.coordination.host.loops import Loops
from raylog.coordination.membership import election
from raylog.coordination.metadata import configs, paths, snapshot
from raylog.coordination.metadata.model import NO_CONTROLLER_EPOCH, ClusterState
from raylog.coordination.metadata.topic_ids import odd_ids
from raylog.coordination.store.port import (
    MetadataStore,
    NodeEvent,
    SessionEvent,
    SessionState,
    StoreError,
)
from raylog.coordination.store.trees import delete_tree
from raylog.protocol.errors import NotController, RequestTimedOut
from raylog.protocol.ids import BrokerEpoch, BrokerId, MonotonicMs, TimestampMs

__all__ = ["ControllerRuntime", "write_out"]

logger = EventLog(__name__)

TICK_MS = 100
RETRY_MS = 200
RECONCILE_MS = 300_000
"""Time between two comparisons of what is believed with what the store holds: nothing should differ."""
UNREADABLE_RETRY_MS = 1_000
STAND_BACK_MS = 1_000
"""After a defect: so long another has to be elected in its place."""
HINT_HOLDS_MS = 2_000
"""How long a broker is taken for dead after a hint that is not repeated."""


class ControlSender(Protocol):
    """Delivers messages to one broker, in order, and puts what came of each on the controller's queue (Sender)."""

    def put(self, message: UpdateState) -> None: ...

    def stop(self) -> None: ...


class ControllerRuntime:
    """Campaigns, and while elected lets the machine decide and carries its effects out."""

    def __init__(
        self,
        broker_id: BrokerId,
        store: MetadataStore,
        peer_control: PeerControl,
        *,
        defaults: Callable[[ClusterState], core.TopicDefaults],
        check_configs: Callable[[Mapping[str, str]], None],
        rules: ElectionRules,
        rebalance: Callable[[ClusterState], core.Rebalance],
        silence_ms: int,
        told: Callable[[], ClusterState],
        loops: Loops,
        now_ms: Callable[[], MonotonicMs] = monotonic_ms,
        wall_ms: Callable[[], TimestampMs] = wall_ms,
        machine: Callable[..., Controller] = Controller,
        sender: Callable[..., ControlSender] = Sender,
    ) -> None:
        """``silence_ms``: how long a broker may leave the controller without an answer; ``told``: what this broker was
        told last; the rest is the core's, which ``machine`` makes. ``now_ms``, ``wall_ms``: the clocks; ``sender``
        makes what carries messages to one broker.
        """
        self._broker_id = broker_id
        self._store = store
        self._peer_control = peer_control
        self._silence_ms = silence_ms
        self._told = told
        self._heard = NO_CONTROLLER_EPOCH
        """Of other controllers, the latest epoch that a broker refused ours for."""
        self._now_ms, self._wall_ms = now_ms, wall_ms
        self._new_sender = sender
        self._new_machine = partial(
            machine,
            defaults=defaults,
            check_configs=check_configs,
            rules=rules,
            rebalance=rebalance,
            silence_ms=silence_ms,
        )
        self._machine = self._new_machine()
        self._mandate: election.Mandate | None = None
        self.calls = ControllerCalls(broker_id, lambda: self._machine.is_active, loops.inbox())
        """What other threads ask of it."""
        self._queue = self.calls.queue
        self._answers: dict[object, Future[Results]] = {}
        self._proposals: dict[object, Future[bytes]] = {}
        self._senders: dict[BrokerId, ControlSender] = {}
        self._gone: dict[BrokerId, tuple[BrokerEpoch, int]] = {}
        """Which incarnations seem dead, and when a hint told so last: it is repeated while it holds."""
        self._campaign_at: int | None = now_ms()
        self._stands_back_until: int = now_ms()
        """Resigned: until then it does not try to be elected."""
        self._tick_at: int = now_ms()
        self._reconcile_at: int = now_ms()
        self._loops = loops
        self._loop = loops.loop("controller", self._round, mend=self._start_over, finish=self._finish)

    @property
    def is_active(self) -> bool:
        """True while this broker is the controller, as far as it knows."""
        return self._machine.is_active

    def start(self) -> None:
        """Begin to campaign; the broker is registered by now."""
        self._store.watch_session(self._queue)
        self._loop.start()

    def stop(self) -> None:
        """Resign if elected, and end the threads."""
        self._loop.stop()
        self._queue.put(Stop())
        self._loop.join()

    # --- the thread ---

    def _round(self) -> bool:
        """One turn; False after the last one."""
        try:
            return not self._turn()
        except StoreError as error:
            logger.warning("controller starts over: the metadata store failed", reason=error)
            self._depose(campaign_in_ms=RETRY_MS)
        except paths.CorruptMetadata as error:
            # Nobody can tell what was meant, so nothing is decided until somebody has mended it.
            logger.error("controller waits: another program wrote what cannot be read", reason=error)
            self._depose(campaign_in_ms=UNREADABLE_RETRY_MS)
        return True

    def _start_over(self, error: Exception) -> None:
        """A defect: the machine may have been left in the midst of a change, so a new one takes its place; and where
        it was in office, another broker gets its turn first, which may not meet what this one has met.
        """
        was_active = self._mandate is not None
        self._machine = self._new_machine()
        self._leave_office()
        self._refuse_waiting()
        self._campaign_at = self._now_ms() + RETRY_MS
        if was_active:
            self._stands_back_until = self._now_ms() + STAND_BACK_MS
            self._resign()

    def _finish(self) -> None:
        """The thread ends, and with it the office; whoever waits for an answer hears so."""
        try:
            self._resign()
            self._depose(campaign_in_ms=None)
        finally:
            self._machine = self._new_machine()
            self._leave_office()
            self._refuse_waiting()
            self.calls.is_over = True
            self.calls.refuse_what_waits()

    def _resign(self) -> None:
        try:
            election.resign(self._store)
        except StoreError as error:
            logger.info("controller could not resign, the session's end will do it", reason=error)

    def _turn(self) -> bool:
        """Campaign when it is time, and take one item in; True when it says to stop."""
        self._campaign_when_due()
        try:
            item = self._queue.get(timeout=max(self._tick_at - self._now_ms(), 0) / 1000)
        except queue.Empty:
            item = None
        if isinstance(item, Stop):
            return True
        if item is not None:
            self._take(item)
        if self._now_ms() >= self._tick_at:  # by the clock, however much there is to take in
            self._tick_at = self._now_ms() + TICK_MS
            self._feed(core.Tick(self._now_ms()))
        if self._now_ms() >= self._reconcile_at:
            self._reconcile()
        return False

    def _reconcile(self) -> None:
        """Read everything when in office, and decide anew where another program changed what no watch tells of."""
        self._reconcile_at = self._now_ms() + RECONCILE_MS
        if not self._machine.is_active:
            return
        found = snapshot.load(self._store)
        known = self._machine.state
        is_as_known = configs.with_known_overrides(found.state, known) == known.as_stored()
        if not is_as_known or any(odd_ids(found.state, found.ids)) or self._machine.awaits_reading:
            logger.warning("controller decides anew: the store holds something else than was believed, or refused it")
            self._feed(core.Loaded(*found))

    def _campaign_when_due(self) -> None:
        if self._campaign_at is None or self._now_ms() < max(self._campaign_at, self._stands_back_until):
            return
        self._campaign_at = None
        now = self._wall_ms()
        known = max(self._heard, self._told().controller_epoch)
        mandate = election.campaign(self._store, self._broker_id, now, self._queue, known)
        if mandate == self._mandate:
            return
        self._depose(campaign_in_ms=None)
        if mandate is None:
            return
        told = configs.read_changes(self._store, self._queue)  # before the snapshot, which holds what they tell of
        found = snapshot.load(self._store, self._queue)
        logger.info("controller elected", controller=self._broker_id, controller_epoch=mandate.epoch)
        self._mandate = mandate
        self._reconcile_at = self._now_ms() + RECONCILE_MS
        held = self._told()
        self._feed(core.Elected(self._broker_id, *mandate, found.state, found.deleting, told.notices, found.ids, held))
        for broker_id, (epoch, told_at) in self._gone.items():  # of which the controller before us may not have known
            if self._now_ms() - told_at < HINT_HOLDS_MS:
                self._feed(core.Fence(broker_id, epoch))

    def _take(self, item: Item) -> None:
        match item:
            case SessionEvent():
                self._session_changed(item)
            case NodeEvent():
                self._node_changed(item.path)
            case Asked() if item.event.deadline_ms <= self._now_ms():
                item.answer.set_exception(RequestTimedOut("nothing was done: the request's time was over before"))
            case Asked():
                self._answers[item.event.token] = item.answer
                self._feed(item.event)
            case AskedToDecide():
                self._proposals[item.event.token] = item.answer
                self._feed(item.event)
            case SeemsDead():
                self._seems_dead(item)
            case Compare():
                self._reconcile()
            case Stop():
                pass
            case _:
                self._feed(item)

    def _seems_dead(self, hint: SeemsDead) -> None:
        """Fence the broker; or, where it is the controller, take its place, and fence it then."""
        self._gone[hint.broker_id] = hint.epoch, self._now_ms()
        if self._machine.is_active:
            self._feed(core.Fence(hint.broker_id, hint.epoch))
            return
        if self._now_ms() < self._stands_back_until:
            return
        now = self._wall_ms()
        epoch = self._store.exists(paths.broker_epoch(hint.broker_id))
        if epoch is not None and epoch.version == hint.epoch:  # else another process has its id by now
            election.take_over(self._store, self._broker_id, now, hint.broker_id)
            self._campaign_at = self._now_ms()

    def _session_changed(self, event: SessionEvent) -> None:
        if event.state is SessionState.CONNECTED:
            self._campaign_at = self._now_ms()
        else:
            self._depose(campaign_in_ms=None)  # watches are lost, and another may be elected unseen

    def _node_changed(self, path: str) -> None:
        if path == paths.CONTROLLER:
            self._campaign_at = self._now_ms()
        elif not self._machine.is_active:
            pass
        elif path.startswith((paths.BROKER_IDS, paths.BROKER_EPOCHS)):
            brokers = snapshot.load_brokers(self._store, self._queue)
            self._feed(core.BrokersChanged(brokers))
        elif path == paths.CONFIG_CHANGES:
            told = configs.read_changes(self._store, self._queue)
            for change in told.changes:
                self._feed(core.ConfigChanged(change.configs, topic=change.topic, broker=change.broker))
            self._feed(core.NoticesRead(told.notices))
        elif strange := snapshot.strange_topics(self._store, self._machine.state, self._queue):
            for text, topics in strange.told():
                logger.warning(text, topics=", ".join(topics))
            self._feed(self._load())

    def _load(self) -> core.Loaded:
        found = snapshot.load(self._store, self._queue)
        return core.Loaded(*found)

    def _feed(self, event: core.Event) -> None:
        """Let the machine decide, and carry out what follows, before anything that the store says meanwhile."""
        events = deque([event])
        while events:
            for effect in self._machine.handle(events.popleft()):
                outcome = self._carry_out(effect)
                if outcome is not None:
                    events.append(outcome)

    def _carry_out(self, effect: core.Effect) -> core.Event | None:
        match effect:
            case core.Write() | core.Remove():
                return write_out(self._store, effect)
            case core.Send():
                self._sender(effect.broker_id).put(effect.message)
            case core.Reply():
                answer = self._answers.pop(effect.token, None)
                if answer is not None:
                    answer.set_result(effect.results)
            case core.Answer():
                proposed = self._proposals.pop(effect.token, None)
                if proposed is not None:
                    proposed.set_result(effect.answer.encode())
            case core.Notice():
                logger.warning(effect.text, **effect.fields)
            case core.Reload():
                return self._load()
            case core.StepDown(heard):
                self._heard = max(self._heard, heard)
                logger.warning("controller deposed: another was elected", controller=self._broker_id)
                self._leave_office()
                self._campaign_at = self._now_ms() + RETRY_MS
                return core.Deposed()
            case core.Resign():
                logger.warning("controller resigns", controller=self._broker_id, reason=effect.reason)
                self._leave_office()
                self._campaign_at = self._stands_back_until = self._now_ms() + self._silence_ms
                election.resign(self._store)
                return core.Deposed()
        return None

    def _depose(self, *, campaign_in_ms: int | None) -> None:
        """Leave office, if in it; campaign again after that time (None: when told to)."""
        self._leave_office()
        self._feed(core.Deposed())
        self._refuse_waiting()
        if campaign_in_ms is not None:
            self._campaign_at = self._now_ms() + campaign_in_ms

    def _refuse_waiting(self) -> None:
        """Whoever waits for an answer hears that it has to ask another."""
        no = NotController(f"broker {self._broker_id} is no longer the controller")
        answers, self._answers = self._answers, {}
        proposals, self._proposals = self._proposals, {}
        for answer in answers.values():
            answer.set_exception(no)
        for proposal in proposals.values():
            proposal.set_exception(no)

    def _leave_office(self) -> None:
        self._mandate = None
        for sender in self._senders.values():
            sender.stop()
        self._senders.clear()

    def _sender(self, broker_id: BrokerId) -> ControlSender:
        sender = self._senders.get(broker_id)
        if sender is None:
            sender = self._senders[broker_id] = self._new_sender(
                broker_id, self._peer_control, self._queue.put, self._loops
            )
        return sender


def write_out(store: MetadataStore, effect: core.Wanted) -> core.Event:
    """Do all of it, or what goes before that which the store refuses or does not answer: that is told."""
    try:
        if isinstance(effect, core.Write):
            for multi in effect.multis:
                store.multi(multi)
        else:
            for node in effect.nodes:
                delete_tree(store, node, effect.checks)
    except StoreError as error:
        return core.WriteFailed(effect.token, error)
    return core.Written(effect.token)
