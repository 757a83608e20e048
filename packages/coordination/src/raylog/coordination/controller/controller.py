"""The controller's core: events in, effects out; no clock, no store, no threads (D8, D10).

How it works. An event that changes the store becomes a *job*: a generator that decides on the state of that
moment and yields each Write it needs. One job runs at a time, the others wait in order, so no decision
rests on a state that a write under way is about to change. What was written is taken into ``state``;
``Peers`` then tells the brokers. Requests are answered once every live broker has acknowledged the outcome,
or when their deadline is over; what brokers propose, as soon as it is written.

When a write fails: at /controller_epoch, we are deposed (StepDown). Else somebody changed what we decided
on, or the outcome is in doubt: everything is read again (Reload), and the difference is decided anew. Where
the nodes of one topic refuse its first states or its deletion, that topic waits for the next reading. A
topic's deletion is recorded first (/admin/delete_topics), a partition without a state node is given one, and
a reassignment stands in the topic's node: so whatever a controller that died left half done, the next one
completes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import NamedTuple

from raylog.coordination.control.leadership import ElectionRules, with_known_states
from raylog.coordination.control.peer_control import Ack
from raylog.coordination.control.proposals import Drain, ProposeIsr, ReplicasDamaged, ReplicasOffline, Verdict
from raylog.coordination.controller.events import (
    Acked,
    BrokersChanged,
    ConfigChanged,
    CreatedTopic,
    Deposed,
    Effect,
    Elected,
    ElectionRequested,
    Event,
    Fence,
    Loaded,
    NewPartitions,
    NewTopic,
    Notice,
    NoticesRead,
    PartitionsCreateRequested,
    Proposed,
    ReassignmentRequested,
    Rebalance,
    Reload,
    Resign,
    Result,
    SendFailed,
    StepDown,
    Tick,
    TopicCreateRequested,
    TopicDefaults,
    TopicDeleteRequested,
    Wanted,
    WriteFailed,
    Written,
)
from raylog.coordination.controller.leaders import Leaders
from raylog.coordination.controller.office import Aborted, Doubt, Job, Office
from raylog.coordination.controller.peers import Peers
from raylog.coordination.controller.pending_proposals import Proposals
from raylog.coordination.controller.pending_requests import Request, Requests, Waiting, named_twice, refuse
from raylog.coordination.controller.silence import judge
from raylog.coordination.controller.topics import Topics
from raylog.coordination.controller.writes import Writes
from raylog.coordination.metadata.configs import with_known_overrides
from raylog.coordination.metadata.model import NO_CONTROLLER_EPOCH, ClusterState
from raylog.coordination.store.port import NoNode, NotEmpty, StoreError
from raylog.protocol.errors import RaylogError, RequestTimedOut
from raylog.protocol.ids import ControllerEpoch, MonotonicMs, TopicId, TopicName

__all__ = ["Controller", "CreatedTopic", "Effect", "Event", "NewPartitions", "NewTopic", "TopicDefaults"]


class _Queued(NamedTuple):
    """A job that waits. ``is_news``: it brings what was read from the store, and a later reading supersedes it."""

    job: Job
    is_news: bool = False


class Controller:
    """The machine. One thread calls :meth:`handle`; any may read :attr:`state`."""

    def __init__(
        self,
        *,
        defaults: Callable[[ClusterState], TopicDefaults] = lambda state: TopicDefaults(),
        check_configs: Callable[[Mapping[str, str]], None] = lambda configs: None,
        rules: ElectionRules | None = None,
        rebalance: Callable[[ClusterState], Rebalance] = lambda state: Rebalance(),
        writes: Callable[[int], Writes] = Writes,
        silence_ms: int | None = None,
    ) -> None:
        """``defaults``: what a new topic gets that names no numbers, given the state's dynamic settings.

        ``check_configs`` raises InvalidConfig for topic overrides that no broker would take. ``rules``: who is to lead.
        ``rebalance``: when preferred replicas lead again. ``writes``: how a mandate writes, given the version of
        /controller_epoch. ``silence_ms``: how long a broker may leave messages without an answer (see
        ``controller.silence``); None: for ever.
        """
        self.is_active = False
        self._defaults = defaults
        self._check_configs = check_configs
        self._rules = rules or ElectionRules()
        self._rebalance = rebalance
        self._writes = writes
        self._silence_ms = silence_ms
        self._effects: list[Effect] = []
        self._jobs: deque[_Queued] = deque()
        self._job: Job | None = None  # waits for the write with the office's token
        self._requests = Requests()
        self._proposals = Proposals()
        self._enter(ClusterState(), -1)

    def _enter(self, state: ClusterState, epoch_version: int, last_sequence: int = 0) -> None:
        peers = Peers(last_sequence, self._silence_ms)
        self._office = Office(state, self._writes(epoch_version), self._effects, peers)
        self._topics = Topics(self._office, self._defaults, self._check_configs)
        self._leaders = Leaders(self._office, self._rules, self._proposals)
        self._rebalanced_ms: MonotonicMs | None = None
        self._wanted: Rebalance | None = None  # to be worked out from the settings in force

    @property
    def state(self) -> ClusterState:
        """The cluster as this controller knows it; as it was at the end of its mandate when it is none."""
        return self._office.state

    @property
    def awaits_reading(self) -> bool:
        """Whether the store refused writes about some topics, which are tried again once it is read again."""
        return self._leaders.has_refused

    def handle(self, event: Event) -> list[Effect]:
        """Take one event in and answer what is to be done, in this order."""
        match event:
            case Elected():
                self._begin(event)
            case Deposed():
                self._end()
            case (
                TopicCreateRequested()
                | TopicDeleteRequested()
                | PartitionsCreateRequested()
                | ElectionRequested()
                | ReassignmentRequested()
            ):
                self._take_request(event)
            case Proposed():
                self._take_proposal(event)
            case _ if self.is_active:
                self._take(event)
        self._run_jobs()
        if self.is_active and self._job is None:  # what a job takes in, it also decides on: brokers hear both at once
            self._note_fenced()
            self._effects += self._office.peers.due(self.state)
        self._effects += self._requests.answer_decided(self._office.peers)
        self._effects += self._proposals.answer_decided(self._office.peers)
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    def _take(self, event: Event) -> None:
        match event:
            case Loaded() if self._job is not None:
                self._office.doubt = Doubt.CHANGED  # it may lack what the job under way writes: ask again after that
            case Loaded(state, deleting, ids):
                self._office.doubt = Doubt.NONE
                self._jobs = deque(queued for queued in self._jobs if not queued.is_news)
                self._jobs.appendleft(_Queued(self._reconcile(state, deleting, ids), is_news=True))
            case BrokersChanged(brokers):
                self._jobs.append(_Queued(self._leaders.set_brokers(brokers), is_news=True))
            case Fence():
                self._jobs.append(_Queued(self._leaders.fence(event)))
            case ConfigChanged():
                self._set_config(event)
            case NoticesRead(notices):
                self._jobs.append(_Queued(self._remove(notices)))
            case Written(token):
                self._resume(token, None)
            case WriteFailed(token, error):
                self._resume(token, error)
            case Acked(ack):
                self._take_ack(ack)
            case SendFailed(broker_id, sequence):
                self._office.peers.failed(broker_id, sequence)
            case Tick(now_ms):
                self._tick(now_ms)

    def _tick(self, now_ms: MonotonicMs) -> None:
        self._office.peers.tick(now_ms)
        self._judge_silence()
        if not self.is_active:
            return
        self._proposals.tick(now_ms)
        self._effects += self._requests.answer_late(now_ms)
        self._office.reloads.tick(now_ms)
        if self._office.doubt is Doubt.UNKNOWN:
            self._office.doubt = Doubt.CHANGED
        if self._wanted is None:
            self._wanted = self._rebalance(self.state)
        if self._rebalanced_ms is None or not self._wanted.is_enabled:
            self._rebalanced_ms = now_ms
        elif now_ms - self._rebalanced_ms >= self._wanted.interval_ms:
            self._rebalanced_ms = now_ms
            self._jobs.append(_Queued(self._leaders.rebalance(self._wanted.percentage)))

    def _judge_silence(self) -> None:
        """See ``controller.silence``."""
        peers = self._office.peers
        verdict = judge(self.state, peers.silent(), peers.doubtful(), peers.unheard(), self._leaders.successor)
        if verdict.resigns:
            self._end()
            self._effects.append(Resign(verdict.resigns))
        for fence in verdict.dead:
            fields = {"broker": fence.broker_id, "broker_epoch": fence.epoch, "silent_ms": self._silence_ms}
            self._effects.append(Notice("broker is fenced: it does not answer the controller", fields))
            self._jobs.append(_Queued(self._leaders.fence(fence)))

    def _note_fenced(self) -> None:
        """Who answers decides who is given work. The controller reaches itself."""
        peers, state = self._office.peers, self.state
        silent = peers.silent()
        fenced = (silent | peers.unheard()) - {state.controller_id}
        for broker in sorted((fenced & silent) - state.fenced):
            fields = {"broker": broker, "broker_epoch": state.brokers[broker].epoch, "silent_ms": self._silence_ms}
            self._effects.append(Notice("broker is given no work: it does not answer the controller", fields))
        if fenced != state.fenced:
            self._office.now(state.changed(fenced=fenced))

    # --- in office and out of it

    def _begin(self, event: Elected) -> None:
        self._end()
        self.is_active = True
        state = ClusterState(controller_id=event.controller_id, controller_epoch=event.epoch)
        self._enter(state, event.epoch_version, self._office.peers.last_sequence)
        found = with_known_states(event.state, event.told)
        self._jobs.append(_Queued(self._reconcile(found, event.deleting, event.ids), is_news=True))
        self._jobs.append(_Queued(self._remove(event.notices)))

    def _end(self) -> None:
        """Forget everything; what was not decided is answered NOT_CONTROLLER."""
        self.is_active = False
        self._jobs.clear()
        self._job, self._office.doubt = None, Doubt.NONE
        self._effects += self._requests.answer_all()
        self._effects += self._proposals.answer_all(NO_CONTROLLER_EPOCH)

    def _take_ack(self, ack: Ack) -> None:
        if ack.controller_epoch > self.state.controller_epoch:
            self._step_down(ack.controller_epoch)
        elif ack.controller_epoch < self.state.controller_epoch:
            pass  # it answers our last mandate's message
        elif self._office.handovers.acked(ack):
            self._jobs.append(_Queued(self._leaders.aware(ack.broker_id)))

    def _step_down(self, heard: ControllerEpoch = NO_CONTROLLER_EPOCH) -> None:
        self._end()
        self._effects.append(StepDown(heard))

    # --- jobs

    def _run_jobs(self) -> None:
        office = self._office
        while self._job is None and self._jobs and office.doubt is Doubt.NONE:
            self._job = self._jobs.popleft().job
            self._advance(None)
        is_doubted = self._job is None and office.doubt is Doubt.CHANGED
        if is_doubted and office.reloads.is_due:  # no write under way: the reading will be newer
            office.doubt = Doubt.RELOADING
            office.reloads.begun()
            self._effects.append(Reload())

    def _resume(self, token: int, error: StoreError | None) -> None:
        if self._job is not None and token == self._office.token:
            self._advance(error)

    def _advance(self, error: StoreError | None) -> None:
        job = self._job
        assert job is not None
        try:
            self._effects.append(job.send(error))
        except (StopIteration, Aborted):
            self._job = None
        if self._office.is_deposed:
            self._step_down()

    def _reconcile(self, state: ClusterState, deleting: frozenset[TopicName], ids: Mapping[TopicId, TopicName]) -> Job:
        """Take in what the store holds and complete what it shows undone."""
        office, before = self._office, self.state
        known = with_known_states(with_known_overrides(state, before), before)
        named = known.with_controller(before.controller_id, before.controller_epoch)
        cluster_id = state.cluster_id or before.cluster_id
        named = named.changed(cluster_id=cluster_id, brokers=before.brokers, fenced=before.fenced)
        named, changed = named.compared(before)
        office.now(named, *changed)
        self._wanted = None
        self._leaders.know_brokers(state.brokers)
        self._leaders.read_anew()
        self._topics.read_anew(ids)
        office.handovers.read_anew()
        yield from self._leaders.settle([name for name in self.state.topics if name not in deleting])
        for name in sorted(deleting):
            yield from self._topics.delete(name)
        yield from self._topics.mend_ids()
        office.reloads.settled()

    def _set_config(self, event: ConfigChanged) -> None:
        """min.insync.replicas may differ now, or unclean elections."""
        topic = self.state.topics.get(event.topic) if event.topic else None
        if topic is not None:
            self._office.now(self.state.with_topics(replace(topic, configs=event.configs)), topic.name)
            self._jobs.append(_Queued(self._leaders.settle([topic.name])))
        elif event.broker is not None:
            configs = {**self.state.broker_configs, event.broker: event.configs}
            self._office.now(self.state.changed(broker_configs=configs))
            self._wanted = None
            self._jobs.append(_Queued(self._leaders.settle()))

    def _remove(self, notices: tuple[str, ...]) -> Job:
        """Last: a controller that is replaced before leaves them to the next one."""
        error = yield from self._office.write(self._office.writes.removal(notices), expected=(NoNode, NotEmpty))
        if error is not None:
            yield from self._office.remove(*notices, expected=(NotEmpty,))

    # --- requests and proposals

    def _take_request(self, request: Request) -> None:
        if self.is_active:
            self._jobs.append(_Queued(self._answered(self._requests.add(request))))
        else:
            self._effects.append(refuse(request))

    def _answered(self, waiting: Waiting) -> Job:
        """Do what is asked, then wait for the brokers."""
        results: list[Result] = []
        request, revision = waiting.request, self._office.peers.revision
        try:
            match request:
                case ElectionRequested():
                    results += yield from self._leaders.elect(request)
                case ReassignmentRequested():
                    results += yield from self._leaders.reassign(request)
                case TopicCreateRequested() | TopicDeleteRequested() | PartitionsCreateRequested():
                    yield from self._each(request, results)
        except Aborted:
            if self._office.is_deposed:
                raise  # NOT_CONTROLLER is the answer to all that waits
            doubt = RequestTimedOut("the metadata store did not confirm the change: look what is there, try again")
            results += [doubt] * (waiting.size - len(results))
        waiting.results = tuple(results)
        waiting.revision = self._office.peers.revision if self._office.peers.revision > revision else -1

    def _each(
        self, request: TopicCreateRequested | TopicDeleteRequested | PartitionsCreateRequested, results: list[Result]
    ) -> Generator[Wanted, StoreError | None, None]:
        """One topic after the other: what is refused does not hold up the others."""
        refused = named_twice(request)
        for index in range(len(request.topics)):
            try:
                results.append(refused.get(index) or (yield from self._topics.do_one(request, index)))
            except RaylogError as error:
                results.append(error)

    def _take_proposal(self, event: Proposed) -> None:
        self._proposals.add(event)
        if self.is_active:
            self._jobs.append(_Queued(self._judged(event)))
        else:
            self._effects += self._proposals.answer_all(NO_CONTROLLER_EPOCH)

    def _judged(self, event: Proposed) -> Job:
        token = event.token
        try:
            match event.proposal:
                case ProposeIsr():
                    yield from self._leaders.propose(token, event.proposal)
                case ReplicasOffline():
                    yield from self._leaders.take_offline(token, event.proposal)
                case ReplicasDamaged():
                    yield from self._leaders.do_without_damaged(token, event.proposal)
                case Drain():
                    yield from self._leaders.drain(token, event.proposal)
        except Aborted:
            if not self._office.is_deposed:
                self._proposals.failed(token, Verdict.UNAVAILABLE, self.state.controller_epoch)
            raise
