"""The controller on a simulated broker: the product's own ``ControllerRuntime``, whose thread runs in virtual time.

Here is what surrounds it: who asks it, the way to the other brokers, and what the invariants and faults want to know.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol

from raylog.broker.cluster.controller_calls import Asked, AskedToDecide
from raylog.broker.cluster.controller_runtime import ControllerRuntime
from raylog.coordination.control.leadership import ElectionRules
from raylog.coordination.control.peer_control import Ack, UpdateState
from raylog.coordination.control.proposals import decode_proposal
from raylog.coordination.controller import events as core
from raylog.coordination.controller.controller import Controller
from raylog.coordination.metadata.model import ClusterState
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import BrokerEpoch, BrokerId, MonotonicMs, TimestampMs, TopicPartition

from .engine import Engine, Thread
from .loops import RunningLoops
from .network import Answer, Network
from .silence import SILENCE_MS, Silence
from .zookeeper import SimStore

TICK_MS = 200
"""At most so late a controller ticks, if nothing hinders it."""
SEND_TIMEOUT_MS = 1_000
DEADLINE_MS = 5_000


class Member(Protocol):
    """The broker that this controller runs on."""

    id: BrokerId
    engine: Engine
    network: Network

    def clock(self) -> MonotonicMs: ...

    def told(self) -> ClusterState:
        """What it heard last from a controller."""
        ...


class Controlling:
    """One broker's candidacy, from its first registration to its process's end."""

    def __init__(
        self,
        member: Member,
        thread: Thread,
        store: SimStore,
        loops: RunningLoops,
        machine: Callable[[], Controller],
        reading: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """It does all its turns within ``reading``."""
        self._member = member
        self._thread = thread
        self._loops = loops
        self.silence = Silence(TICK_MS)
        """Who does not answer it, in this mandate."""
        self.on_silent: Callable[[BrokerId], None] = lambda broker: None
        """Told of each broker that it gives no work from now on, since that does not answer."""
        self._tokens = itertools.count(1)
        self._runtime = SimRuntime(
            member.id,
            store,
            None,  # type: ignore[arg-type]
            defaults=lambda state: core.TopicDefaults(),
            check_configs=lambda configs: None,
            rules=ElectionRules(),
            rebalance=lambda state: core.Rebalance(),
            silence_ms=SILENCE_MS,
            told=member.told,
            loops=loops,
            now_ms=member.clock,
            wall_ms=lambda: TimestampMs(0),
            machine=lambda **_: machine(),
            sender=self._sender,
        )
        self._runtime.surroundings, self._runtime.reading = self, reading

    @property
    def is_active(self) -> bool:
        return self._runtime.is_active

    @property
    def is_busy(self) -> bool:
        """It waits for the store: what it reads may be of before and after what others write meanwhile."""
        return self._thread.busy

    @property
    def state(self) -> ClusterState:
        """The cluster as it knows it."""
        return self._runtime.state

    @property
    def epoch(self) -> int | None:
        """The controller's, of its mandate, if it has one."""
        return self._runtime.epoch

    def replicas(self, tp: TopicPartition) -> tuple[BrokerId, ...]:
        """The partition's; none of one that it does not know."""
        partition = self.state.partition(tp)
        return () if partition is None else partition.replicas

    def start(self) -> None:
        self._runtime.start()

    def stop(self) -> None:
        """Resign, in an orderly stop."""
        self._runtime.stop()

    def fail_threads(self, count: int) -> None:
        """So many of the next steps of its threads fail, or of making those that send."""
        self._loops.fail(count, [f"control-to-{broker}" for broker in self.state.brokers])

    # --- who asks it

    def propose(self, payload: bytes, answer: Answer) -> None:
        """A broker's proposal has come; None for an answer: it has left office."""
        try:
            proposal = decode_proposal(payload)
        except RaylogError:
            return
        done: Future[bytes] = Future()
        done.add_done_callback(lambda done: answer(None if done.exception() else done.result()))
        self._runtime.calls.queue.put(AskedToDecide(core.Proposed(next(self._tokens), proposal), done))

    def create(self, topic: core.NewTopic, topic_id: Any, answer: Answer) -> None:
        done: Future[Any] = Future()
        done.add_done_callback(lambda done: answer(None if done.exception() else done.result()[0]))
        self._ask(lambda token, deadline: core.TopicCreateRequested(token, (topic,), (topic_id,), deadline), done)

    def ask(self, request: Callable[[object, MonotonicMs], Any]) -> None:
        """Somebody asks for what ``request`` makes, given a token and a deadline; nobody waits for the answer."""
        self._ask(request, Future())

    def _ask(self, request: Callable[[object, MonotonicMs], Any], done: Future[Any]) -> None:
        deadline = MonotonicMs(self._member.clock() + DEADLINE_MS)
        self._runtime.calls.queue.put(Asked(request(next(self._tokens), deadline), done))

    def seems_dead(self, broker_id: BrokerId, epoch: BrokerEpoch) -> None:
        """A liveness connection says that this incarnation is dead."""
        self._runtime.calls.seems_dead(broker_id, epoch)

    def compare(self) -> None:
        """Somebody has mended what nobody could read: it compares all with what it knows."""
        self._runtime.calls.reconcile()

    # --- the way to others

    def _sender(self, broker_id: BrokerId, _: Any, answer: Callable[[Any], None], loops: RunningLoops) -> SimSender:
        loops.begin_step(f"control-to-{broker_id}")  # of making its thread
        return SimSender(self, broker_id, answer)

    def send(self, to: BrokerId, payload: bytes, done: Answer) -> None:
        member = self._member
        self.silence.asked(to, member.engine.now)
        member.network.call(member.id, self._thread, to, "control", payload, SEND_TIMEOUT_MS, done)

    def answered(self, broker: BrokerId) -> None:
        self.silence.answered(broker, self._member.engine.now)

    # --- what it does

    def feeds(self, event: core.Event) -> None:
        if isinstance(event, core.Elected):
            self._member.engine.note(f"broker {self._member.id} is the controller, epoch {event.epoch}")
            self.silence = Silence(TICK_MS)
        elif isinstance(event, core.Tick) and self.is_active:
            self.silence.tick(self._member.engine.now)

    def has_fed(self) -> None:
        if self.state.fenced:
            for broker in sorted(self.state.fenced & self.silence.news()):
                self.on_silent(broker)

    def notes(self, what: str) -> None:
        self._member.engine.note(f"controller at {self._member.id}: {what}")


class SimRuntime(ControllerRuntime):
    """Tells what it does."""

    surroundings: Controlling
    reading: Callable[[], AbstractContextManager[object]]

    @property
    def state(self) -> ClusterState:
        return self._machine.state

    @property
    def epoch(self) -> int | None:
        return None if self._mandate is None else self._mandate.epoch

    def _turn(self) -> bool:
        with self.reading():
            return super()._turn()

    def _feed(self, event: core.Event) -> None:
        self.surroundings.feeds(event)
        super()._feed(event)
        self.surroundings.has_fed()

    def _carry_out(self, effect: core.Effect) -> core.Event | None:
        if isinstance(effect, core.Notice):
            self.surroundings.notes(f"{effect.text}: {dict(effect.fields)}")
        elif isinstance(effect, core.StepDown | core.Resign):
            self.surroundings.notes(f"{type(effect).__name__}")
        return super()._carry_out(effect)


class SimSender:
    """Stands in for Sender: one message at a time, in order; its thread would block where this one is called back."""

    def __init__(self, surroundings: Controlling, broker_id: BrokerId, answer: Callable[[Any], None]) -> None:
        self._surroundings = surroundings
        self._broker_id = broker_id
        self._answer = answer
        self._waiting: deque[UpdateState] = deque()
        self._is_over = False

    def put(self, message: UpdateState) -> None:
        self._waiting.append(message)
        if len(self._waiting) == 1:
            self._send(message)

    def stop(self) -> None:
        self._is_over = True

    def _send(self, message: UpdateState) -> None:
        def done(answer: bytes | None) -> None:
            if self._is_over:
                return
            if answer is not None:
                self._surroundings.answered(self._broker_id)
            failed = core.SendFailed(self._broker_id, message.sequence)
            self._answer(failed if answer is None else core.Acked(Ack.decode(answer)))
            self._waiting.popleft()
            if self._waiting:
                self._send(self._waiting[0])

        self._surroundings.send(self._broker_id, message.encode(), done)
