"""The controller on a simulated broker: what ``controller_runtime`` is in a real one, without its threads.

Campaigns, reads, feeds the machine and carries its effects out. All of it runs on one thread, whose calls to the store
take time; what brokers answer comes back as steps of that thread.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from raylog.broker.controller_runtime import write_out
from raylog.coordination import configs, election, paths, snapshot
from raylog.coordination import controller_events as core
from raylog.coordination.controller import Controller
from raylog.coordination.election import Mandate
from raylog.coordination.model import ClusterState
from raylog.coordination.peer_control import Ack
from raylog.coordination.proposals import decode_proposal
from raylog.coordination.store import NodeEvent, SessionEvent, SessionState, StoreError, StoreEvent
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import BrokerEpoch, BrokerId, MonotonicMs, TimestampMs, TopicPartition

from .engine import Engine, Thread
from .network import Answer, Network
from .silence import SILENCE_MS, Silence
from .zookeeper import SimSink, SimStore

TICK_MS = 200
RETRY_MS = 200
UNREADABLE_RETRY_MS = 1_000
SEND_TIMEOUT_MS = 1_000


class Member(Protocol):
    """The broker that this controller runs on."""

    id: BrokerId
    engine: Engine
    network: Network

    def clock(self) -> MonotonicMs: ...


class Controlling:
    """One broker's candidacy, from its first registration to its process's end."""

    def __init__(
        self,
        member: Member,
        thread: Thread,
        store: SimStore,
        make_sink: Callable[..., SimSink],
        machine: Controller,
        reading: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """All that the store holds is read within ``reading``."""
        self._member = member
        self._thread = thread
        self._store = store
        self._machine = machine
        self._reading = reading
        self.silence = Silence(TICK_MS)
        """Who does not answer it, in this mandate."""
        self.on_silent: Callable[[BrokerId], None] = lambda broker: None
        """Told of each broker that it gives no work from now on, since that does not answer."""
        self._sink = make_sink(thread, self._store_event)
        self._mandate: Mandate | None = None
        self._campaign_at: int | None = 0
        self._stands_back_until = 0
        """Resigned: until then it does not try to be elected."""
        self._tokens = itertools.count(1)
        self._answers: dict[object, Answer] = {}
        self.on_brokers: Callable[[Any], None] = lambda brokers: None
        """Told whom to keep liveness connections to."""

    @property
    def is_active(self) -> bool:
        return self._machine.is_active

    @property
    def is_busy(self) -> bool:
        """It waits for the store: what it reads may be of before and after what others write meanwhile."""
        return self._thread.busy

    @property
    def state(self) -> ClusterState:
        """The cluster as it knows it."""
        return self._machine.state

    @property
    def epoch(self) -> int | None:
        """The controller's, of its mandate, if it has one."""
        return None if self._mandate is None else self._mandate.epoch

    def replicas(self, tp: TopicPartition) -> tuple[BrokerId, ...]:
        """The partition's; none of one that it does not know."""
        partition = self.state.partition(tp)
        return () if partition is None else partition.replicas

    def start(self) -> None:
        self._store.watch_session(self._sink)
        self._turn(lambda: None)
        self._member.engine.at(TICK_MS, self._thread, self._tick)

    def propose(self, payload: bytes, answer: Answer) -> None:
        """A broker's proposal has come; any thread."""
        self._post(lambda: self._take_proposal(payload, answer))

    def create(self, topic: core.NewTopic, topic_id: Any, answer: Answer) -> None:
        self._post(lambda: self._take_creation(topic, topic_id, answer))

    def ask(self, request: Callable[[object, MonotonicMs], core.Event]) -> None:
        """Somebody asks for what ``request`` makes, given a token and a deadline; nobody waits for the answer."""
        deadline = MonotonicMs(self._member.clock() + 5_000)
        self._post(lambda: self._feed(request(next(self._tokens), deadline)))

    def fence(self, broker_id: BrokerId, epoch: BrokerEpoch) -> None:
        """A liveness connection says that this incarnation is dead."""
        self._post(lambda: self._feed(core.Fence(broker_id, epoch)))

    def compare(self) -> None:
        """Somebody has mended what nobody could read: it compares all with what it knows."""
        self._post(self._compare)

    def controller_hint(self, dead: BrokerId) -> None:
        """A liveness connection says that the controller is dead."""
        self._post(lambda: self._challenge(dead))

    # --- the thread

    def _post(self, action: Callable[[], None], delay: int = 0) -> None:
        self._member.engine.at(delay, self._thread, lambda: self._turn(action))

    def _turn(self, action: Callable[[], None]) -> None:
        """Campaign when it is time, and do one thing; start over when the store fails."""
        self._store.thread = self._thread
        try:
            self._campaign_when_due()
            action()
        except StoreError as error:
            self._member.engine.note(f"controller at {self._member.id}: starts over, {error}")
            self._depose()
            self._campaign_at = self._member.engine.now + RETRY_MS
        except paths.CorruptMetadata as error:
            self._member.engine.note(f"controller at {self._member.id}: waits, {error}")
            self._depose()
            self._campaign_at = self._member.engine.now + UNREADABLE_RETRY_MS

    def _tick(self) -> None:
        self._member.engine.at(TICK_MS, self._thread, self._tick)
        self._turn(self._take_tick)

    def _take_tick(self) -> None:
        if self._machine.is_active:
            self.silence.tick(self._member.engine.now)
            self._feed(core.Tick(self._member.clock()))

    def _campaign_when_due(self) -> None:
        now = self._member.engine.now
        if self._campaign_at is None or now < max(self._campaign_at, self._stands_back_until):
            return
        self._campaign_at = None
        engine, member = self._member.engine, self._member
        mandate = election.campaign(self._store, member.id, TimestampMs(0), self._sink)
        if mandate == self._mandate:
            return
        self._depose()
        if mandate is None:
            return
        with self._reading():
            told = configs.read_changes(self._store, self._sink)
            found = snapshot.load(self._store, self._sink)
        engine.note(f"broker {member.id} is the controller, epoch {mandate.epoch}")
        self._mandate = mandate
        self.silence = Silence(TICK_MS)
        self.on_brokers(found.state.brokers)
        elected = core.Elected(member.id, *mandate, found.state, found.deleting, told.notices, found.ids)
        self._feed(elected)

    def _challenge(self, dead: BrokerId) -> None:
        """Take the office of a controller that is dead by all signs."""
        if not self._machine.is_active:
            election.take_over(self._store, self._member.id, TimestampMs(0), dead)
            self._campaign_at = 0
            self._campaign_when_due()

    def _store_event(self, event: StoreEvent) -> None:
        self._turn(lambda: self._take_store_event(event))

    def _take_store_event(self, event: StoreEvent) -> None:
        match event:
            case SessionEvent(SessionState.CONNECTED):
                self._campaign_at = 0
                self._campaign_when_due()
            case SessionEvent():
                self._depose()
            case NodeEvent(paths.CONTROLLER):
                self._campaign_at = 0
                self._campaign_when_due()
            case NodeEvent(path) if not self._machine.is_active:
                pass
            case NodeEvent(path) if path.startswith((paths.BROKER_IDS, paths.BROKER_EPOCHS)):
                with self._reading():
                    brokers = snapshot.load_brokers(self._store, self._sink)
                self.on_brokers(brokers)
                self._feed(core.BrokersChanged(brokers))
            case NodeEvent(paths.CONFIG_CHANGES):
                with self._reading():
                    told = configs.read_changes(self._store, self._sink)
                for change in told.changes:
                    self._feed(core.ConfigChanged(change.configs, topic=change.topic, broker=change.broker))
                self._feed(core.NoticesRead(told.notices))
            case NodeEvent():
                if snapshot.shows_strange_topics(self._store, self._machine.state, self._sink):
                    self._feed(self._load())

    def _load(self) -> core.Loaded:
        with self._reading():
            return core.Loaded(*snapshot.load(self._store, self._sink))

    def _compare(self) -> None:
        """As ControllerRuntime._reconcile."""
        if self._machine.is_active:
            loaded, known = self._load(), self._machine.state
            if configs.with_known_overrides(loaded.state, known) != known.as_stored() or self._machine.awaits_reading:
                self._feed(loaded)

    def _take_proposal(self, payload: bytes, answer: Answer) -> None:
        try:
            proposal = decode_proposal(payload)
        except RaylogError:
            return
        token = next(self._tokens)
        self._answers[token] = lambda message: answer(message.encode())
        self._feed(core.Proposed(token, proposal))

    def _take_creation(self, topic: core.NewTopic, topic_id: Any, answer: Answer) -> None:
        token = next(self._tokens)
        self._answers[token] = answer
        deadline = MonotonicMs(self._member.clock() + 5_000)
        self._feed(core.TopicCreateRequested(token, (topic,), (topic_id,), deadline))

    # --- effects

    def _feed(self, event: core.Event) -> None:
        events = deque([event])
        while events:
            for effect in self._machine.handle(events.popleft()):
                outcome = self._carry_out(effect)
                if outcome is not None:
                    events.append(outcome)
        if self._machine.state.fenced:
            for broker in sorted(self._machine.state.fenced & self.silence.news()):
                self.on_silent(broker)

    def _carry_out(self, effect: core.Effect) -> core.Event | None:
        match effect:
            case core.Write() | core.Remove():
                return write_out(self._store, effect)
            case core.Send():
                self._send(effect)
            case core.Reply(token, results):
                self._answer(token, results[0])
            case core.Answer(token, answer):
                self._answer(token, answer)
            case core.Reload():
                return self._load()
            case core.Notice(text, fields):
                self._member.engine.note(f"controller at {self._member.id}: {text}: {dict(fields)}")
            case core.Resign():
                self._member.engine.note(f"controller at {self._member.id}: resigns, it reaches too few brokers")
                self._mandate = None
                self._campaign_at = self._stands_back_until = self._member.engine.now + SILENCE_MS
                election.resign(self._store)
                return core.Deposed()
            case core.StepDown():
                self._member.engine.note(f"controller at {self._member.id}: deposed")
                self._mandate = None
                self._campaign_at = self._member.engine.now + RETRY_MS
                return core.Deposed()
        return None

    def _answer(self, token: object, answer: Any) -> None:
        reply = self._answers.pop(token, None)
        if reply is not None:
            reply(answer)

    def _send(self, effect: core.Send) -> None:
        mandate, member = self._mandate, self._member
        to, sequence = effect.broker_id, effect.message.sequence
        self.silence.asked(to, member.engine.now)

        def done(answer: bytes | None) -> None:
            if self._mandate == mandate:
                if answer is not None:
                    self.silence.answered(to, member.engine.now)
                event = core.SendFailed(to, sequence) if answer is None else core.Acked(Ack.decode(answer))
                self._turn(lambda: self._feed(event))

        payload = effect.message.encode()
        member.network.call(member.id, self._thread, to, "control", payload, SEND_TIMEOUT_MS, done)

    def _depose(self) -> None:
        self._mandate = None
        self._feed(core.Deposed())
        self._answers.clear()
