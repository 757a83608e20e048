"""The controller's core: events in, effects out; no clock, no store, no threads (D8, D10).

How it works. An event that changes the store becomes a *job*: a generator that decides on the state of that
moment and yields each Write it needs. One job runs at a time, the others wait in order, so no decision
rests on a state that a write under way is about to change. What was written is taken into ``state``;
``Peers`` then tells the brokers. Requests are answered once every live broker has acknowledged the outcome,
or when their deadline is over.

When a write fails: at /controller_epoch, we are deposed (StepDown). Else somebody changed what we decided
on, or the outcome is in doubt: everything is read again (Reload), and the difference is decided anew. A
topic's deletion is recorded first (/admin/delete_topics), a partition without a state node is given one: so
whatever a controller that died left half done, the next one completes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from raylog.coordination import paths
from raylog.coordination.controller_events import (
    Acked,
    BrokersChanged,
    ConfigChanged,
    CreatedTopic,
    Deposed,
    Effect,
    Elected,
    Event,
    Loaded,
    NewPartitions,
    NewTopic,
    PartitionsCreateRequested,
    Reload,
    SendFailed,
    StepDown,
    Tick,
    TopicCreateRequested,
    TopicDefaults,
    TopicDeleteRequested,
    Write,
    WriteFailed,
    Written,
)
from raylog.coordination.controller_peers import Peers
from raylog.coordination.controller_requests import Request, Requests, Result, Waiting, named_twice, refuse
from raylog.coordination.controller_topics import plan, plan_growth
from raylog.coordination.controller_writes import (
    creation,
    deletion_marker,
    deletion_of_nodes,
    deletion_of_partitions,
    growth,
    initialisation,
    parent_of_partitions,
    updates,
)
from raylog.coordination.leadership import Change, decide, restarted
from raylog.coordination.model import BrokerInfo, ClusterState, TopicState
from raylog.coordination.peer_control import Ack
from raylog.coordination.store import BadVersion, NodeExists, NoNode, Op, StoreError
from raylog.protocol.errors import (
    RaylogError,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import BrokerId, TopicId, TopicName

__all__ = ["Controller", "CreatedTopic", "Effect", "Event", "NewPartitions", "NewTopic", "TopicDefaults"]

Job = Generator[Write, StoreError | None, None]


class _Doubt(Enum):
    """Whether ``state`` may differ from what the store holds."""

    NONE = 0
    CHANGED = 1  # somebody wrote: read again at once
    UNKNOWN = 2  # no answer, or a surprising one: read again at the next tick, lest it goes round in circles
    RELOADING = 3


class _Queued(NamedTuple):
    """A job that waits. ``is_news``: it brings what was read from the store, and a later reading supersedes it."""

    job: Job
    is_news: bool


class _Aborted(Exception):
    """A write failed in a way that ends the job: we step down, or read everything again."""


class Controller:
    """The machine. One thread calls :meth:`handle`; any may read :attr:`state`."""

    def __init__(
        self,
        *,
        defaults: Callable[[ClusterState], TopicDefaults] = lambda state: TopicDefaults(),
        check_configs: Callable[[Mapping[str, str]], None] = lambda configs: None,
    ) -> None:
        """``defaults``: what a new topic gets that names no numbers, given the state's dynamic settings.

        ``check_configs`` raises InvalidConfig for topic overrides that no broker would take.
        """
        self.state = ClusterState()
        self.is_active = False
        self._defaults = defaults
        self._check_configs = check_configs
        self._epoch_version = -1
        self._token = 0
        self._jobs: deque[_Queued] = deque()
        self._job: Job | None = None  # waits for the write with the token
        self._doubt = _Doubt.NONE
        self._restarted: frozenset[BrokerId] = frozenset()
        self._peers = Peers()
        self._requests = Requests()
        self._effects: list[Effect] = []

    def handle(self, event: Event) -> list[Effect]:
        """Take one event in and answer what is to be done, in this order."""
        match event:
            case Elected():
                self._begin(event)
            case Deposed():
                self._end()
            case TopicCreateRequested() | TopicDeleteRequested() | PartitionsCreateRequested():
                self._take_request(event)
            case _ if self.is_active:
                self._take(event)
        self._run_jobs()
        if self.is_active:
            self._effects += self._peers.due(self.state)
        self._effects += self._requests.answer_decided(self._peers)
        effects, self._effects = self._effects, []
        return effects

    def _take(self, event: Event) -> None:
        match event:
            case Loaded() if self._job is not None:
                self._doubt = _Doubt.CHANGED  # it may lack what the job under way writes: ask again after that
            case Loaded(state, deleting):
                self._doubt = _Doubt.NONE
                self._jobs = deque(queued for queued in self._jobs if not queued.is_news)
                self._jobs.appendleft(_Queued(self._reconcile(state, deleting), is_news=True))
            case BrokersChanged(brokers):
                self._jobs.append(_Queued(self._set_brokers(brokers), is_news=True))
            case ConfigChanged():
                self._set_config(event)
            case Written(token):
                self._resume(token, None)
            case WriteFailed(token, error):
                self._resume(token, error)
            case Acked(ack):
                self._take_ack(ack)
            case SendFailed(broker_id, sequence):
                self._peers.failed(broker_id, sequence)
            case Tick(now_ms):
                self._peers.tick()
                self._effects += self._requests.answer_late(now_ms)
                if self._doubt is _Doubt.UNKNOWN:
                    self._doubt = _Doubt.CHANGED

    # --- in office and out of it

    def _begin(self, event: Elected) -> None:
        self._end()
        self.is_active = True
        self._epoch_version = event.epoch_version
        self._peers = Peers(self._peers.last_sequence)
        self.state = ClusterState(controller_id=event.controller_id, controller_epoch=event.epoch)
        self._jobs.append(_Queued(self._reconcile(event.state, event.deleting), is_news=True))

    def _end(self) -> None:
        """Forget everything; what was not decided is answered NOT_CONTROLLER."""
        self.is_active = False
        self._jobs.clear()
        self._job, self._doubt, self._restarted = None, _Doubt.NONE, frozenset()
        self._effects += self._requests.answer_all()

    def _take_ack(self, ack: Ack) -> None:
        if ack.controller_epoch > self.state.controller_epoch:
            self._step_down()
        elif ack.controller_epoch == self.state.controller_epoch:  # else it answers our last mandate's message
            self._peers.acked(ack)

    def _step_down(self) -> None:
        self._end()
        self._effects.append(StepDown())

    # --- jobs and writes

    def _run_jobs(self) -> None:
        while self._job is None and self._jobs and self._doubt is _Doubt.NONE:
            self._job = self._jobs.popleft().job
            self._advance(None)
        if self._job is None and self._doubt is _Doubt.CHANGED:  # no write under way: the reading will be newer
            self._doubt = _Doubt.RELOADING
            self._effects.append(Reload())

    def _resume(self, token: int, error: StoreError | None) -> None:
        if self._job is not None and token == self._token:
            self._advance(error)

    def _advance(self, error: StoreError | None) -> None:
        job = self._job
        assert job is not None
        try:
            self._effects.append(job.send(error))
        except StopIteration:
            self._job = None
        except _Aborted:
            self._job = None

    def _write(
        self, multis: Iterable[tuple[Op, ...]], *, expected: tuple[type[StoreError], ...] = ()
    ) -> Generator[Write, StoreError | None, StoreError | None]:
        """Carry the multis out, if any; answers None, or the error when it is an ``expected`` one."""
        if not (multis := tuple(multis)):
            return None
        self._token += 1
        error = yield Write(self._token, multis)
        if error is None or isinstance(error, expected):
            return error
        if isinstance(error, BadVersion) and error.path == paths.CONTROLLER_EPOCH:
            self._step_down()
        else:
            self._doubt = _Doubt.CHANGED if isinstance(error, BadVersion) else _Doubt.UNKNOWN
        raise _Aborted from error

    def _now(self, state: ClusterState, *topics: TopicName) -> None:
        """This is the state from now on; it differs in these topics."""
        self.state = state
        self._peers.changed(topics)

    # --- brokers, leaders, configs

    def _reconcile(self, state: ClusterState, deleting: frozenset[TopicName]) -> Job:
        """Take in what the store holds and complete what it shows undone."""
        before = self.state
        self._now(
            state.with_controller(before.controller_id, before.controller_epoch),
            *{*before.topics, *state.topics},
        )
        self._peers.set_brokers(state.brokers)
        for name in sorted(deleting):
            yield from self._delete(name)
        yield from self._decide_leaders(before.brokers)

    def _set_brokers(self, brokers: Mapping[BrokerId, BrokerInfo]) -> Job:
        before = self.state.brokers
        self._now(self.state.with_brokers(brokers))
        self._peers.set_brokers(brokers)
        yield from self._decide_leaders(before)

    def _decide_leaders(self, brokers_before: Mapping[BrokerId, BrokerInfo]) -> Job:
        self._restarted |= restarted(brokers_before, self.state.brokers)  # until it is written
        changes = decide(self.state, self._restarted)
        fresh = [change for change in changes if change.old.version == -1]
        for topic in sorted({change.tp.topic for change in fresh}):
            yield from self._write([parent_of_partitions(topic, self._epoch_version)], expected=(NodeExists,))
        known = [change for change in changes if change.old.version != -1]
        yield from self._write(initialisation(fresh, self.state, self._epoch_version))
        yield from self._write(updates(known, self.state, self._epoch_version))
        self._restarted = frozenset()
        self._take_in(changes)

    def _take_in(self, changes: list[Change]) -> None:
        if not changes:
            return
        topics: dict[TopicName, TopicState] = {}
        for tp, old, new in changes:
            topic = topics.get(tp.topic) or self.state.topics[tp.topic]
            topics[tp.topic] = topic.with_partition(tp.partition, replace(new, version=old.version + 1))
        self._now(self.state.with_topics(*topics.values()), *topics)

    def _set_config(self, event: ConfigChanged) -> None:
        topic = self.state.topics.get(event.topic) if event.topic else None
        if topic is not None:
            self._now(self.state.with_topics(replace(topic, configs=event.configs)), topic.name)
        elif event.broker is not None:
            configs = {**self.state.broker_configs, event.broker: event.configs}
            self._now(replace(self.state, broker_configs=configs))

    # --- requests

    def _take_request(self, request: Request) -> None:
        if self.is_active:
            self._jobs.append(_Queued(self._each(self._requests.add(request)), is_news=False))
        else:
            self._effects.append(refuse(request))

    def _each(self, waiting: Waiting) -> Job:
        """Do topic after topic, then wait for the brokers."""
        results: list[Result] = []
        request, revision = waiting.request, self._peers.revision
        refused = named_twice(request)
        try:
            for index in range(len(request.topics)):
                try:
                    results.append(refused.get(index) or (yield from self._do_one(request, index)))
                except RaylogError as error:
                    results.append(error)
        except _Aborted:
            doubt = RequestTimedOut("the metadata store did not confirm the change: list the topics, try again")
            results += [doubt] * (len(request.topics) - len(results))
        waiting.results = tuple(results)
        waiting.revision = self._peers.revision if self._peers.revision > revision else 0

    def _do_one(self, request: Request, index: int) -> Generator[Write, StoreError | None, Result]:
        match request:
            case TopicCreateRequested():
                return (yield from self._create_one(request, index))
            case PartitionsCreateRequested():
                return (yield from self._grow_one(request.topics[index], validate_only=request.validate_only))
            case TopicDeleteRequested():
                return (yield from self._delete_one(request.topics[index]))

    def _create_one(self, request: TopicCreateRequested, index: int) -> Generator[Write, StoreError | None, Result]:
        new, topic_id = request.topics[index], request.ids[index]
        partitions = plan(new, self.state, defaults=self._defaults(self.state), check_configs=self._check_configs)
        topic = TopicState(new.name, topic_id, partitions, dict(new.configs))
        created = CreatedTopic(new.name, topic_id, len(partitions), len(partitions[0].replicas), topic.configs)
        if request.validate_only:
            return created
        multis = creation(topic, self.state, self._epoch_version)
        if (yield from self._write(multis, expected=(NodeExists,))) is not None:
            self._doubt = _Doubt.UNKNOWN
            raise TopicAlreadyExists(f"topic {new.name} exists already: another program made it")
        written = replace(topic, partitions=tuple(replace(p, version=0) for p in partitions))
        self._now(self.state.with_topics(written), topic.name)
        return created

    def _grow_one(self, new: NewPartitions, *, validate_only: bool) -> Generator[Write, StoreError | None, Result]:
        added = plan_growth(new, self.state)
        if validate_only:
            return new.name
        topic = self.state.topics[new.name]
        grown = replace(topic, partitions=(*topic.partitions, *added))
        yield from self._write(growth(grown, len(topic.partitions), self.state, self._epoch_version))
        written = (*topic.partitions, *(replace(partition, version=0) for partition in added))
        self._now(self.state.with_topics(replace(self.state.topics[new.name], partitions=written)), new.name)
        return new.name

    def _delete_one(self, wanted: TopicName | TopicId) -> Generator[Write, StoreError | None, Result]:
        name = self._name_of(wanted)
        marker = deletion_marker(name, self._epoch_version)
        yield from self._write([marker], expected=(NodeExists,))
        yield from self._delete(name)
        return name

    def _name_of(self, wanted: TopicName | TopicId) -> TopicName:
        if isinstance(wanted, str):
            if wanted not in self.state.topics:
                raise UnknownTopicOrPartition(f"there is no topic {wanted}")
            return wanted
        topic = self.state.topic_by_id(wanted)
        if topic is None:
            raise UnknownTopicId(f"there is no topic with the id {paths.encode_topic_id(wanted)}")
        return topic.name

    def _delete(self, name: TopicName) -> Generator[Write, StoreError | None, None]:
        """Remove a topic whose deletion is recorded; each step may have been done before."""
        topic = self.state.topics.get(name)
        if topic is not None:
            yield from self._write(deletion_of_partitions(topic, self._epoch_version))
        for multi in deletion_of_nodes(name, self._epoch_version):
            yield from self._write([multi], expected=(NoNode,))
        if topic is not None:
            self._now(self.state.without_topics(name), name)
