"""The controller's core with all around it in one thread: the store in memory, brokers that receive, a wire
to cut.

``ControlledCluster`` is what ``controller_runtime`` is in a broker, without threads: it carries effects out
at once, except messages, which wait on ``wire`` until :meth:`deliver`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from raylog.coordination.control.leadership import ElectionRules
from raylog.coordination.control.peer_control import Ack, Receiver
from raylog.coordination.control.proposals import (
    IsrAnswer,
    IsrChange,
    Outcome,
    Proposal,
    ProposalAnswer,
    ProposeIsr,
    decode_proposal,
)
from raylog.coordination.controller.controller import Controller
from raylog.coordination.controller.events import (
    Acked,
    Answer,
    BrokersChanged,
    ConfigChanged,
    Deposed,
    Effect,
    Elected,
    ElectionRequested,
    Event,
    Fence,
    Loaded,
    NewPartitions,
    NewReplicas,
    NewTopic,
    Notice,
    NoticesRead,
    PartitionsCreateRequested,
    Proposed,
    ReassignmentRequested,
    Rebalance,
    Reload,
    Remove,
    Reply,
    Resign,
    Result,
    Send,
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
from raylog.coordination.controller.writes import Writes
from raylog.coordination.membership.election import campaign, resign
from raylog.coordination.membership.registration import ensure_cluster
from raylog.coordination.metadata import configs, paths, snapshot
from raylog.coordination.metadata.model import BrokerInfo, ClusterState, Endpoint, PartitionState
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import Check, Create, Set, StoreError
from raylog.coordination.store.trees import delete_tree
from raylog.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    MonotonicMs,
    PartitionIndex,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)


class Nowhere:
    """A sink that forgets."""

    def put(self, item: object, /) -> None: ...


class InFlight(NamedTuple):
    """A message on the wire."""

    to: BrokerId
    sequence: int
    payload: bytes


def _act(before: ClusterState, after: ClusterState) -> None:
    """There is nothing to do."""


class FakeBroker:
    """A broker's session, incarnation and receiver."""

    def __init__(self, tree: MemoryTree, broker_id: int, rack: str | None = None) -> None:
        self.tree = tree
        self.info = BrokerInfo(
            BrokerId(broker_id), BrokerEpoch(-1), (Endpoint("PLAINTEXT", f"h{broker_id}", 9092),), rack
        )
        self.receiver = Receiver(self.info.id)
        self.up()

    def up(self, *, lost_data: bool = False) -> None:
        """Start a new process: a new session, a new incarnation. ``lost_data``: it does not have what it had."""
        self.store = MemoryStore(self.tree)
        self.store.start()
        self.store.ensure(paths.broker_epoch(self.info.id))
        self.store.ensure(paths.raylog_broker(self.info.id))
        stat = self.store.exists(paths.broker_epoch(self.info.id))
        assert stat is not None
        epoch = BrokerEpoch(stat.version + 1)
        intact_since = epoch if lost_data or self.info.epoch == -1 else self.info.intact_since
        self.info = replace(self.info, epoch=epoch, intact_since=intact_since, disks_since=intact_since)
        self.store.multi(
            [
                Create(paths.broker(self.info.id), paths.encode_broker(self.info, TimestampMs(0)), ephemeral=True),
                Set(paths.raylog_broker(self.info.id), paths.encode_raylog_broker(self.info)),
                Set(paths.broker_epoch(self.info.id), b"", stat.version),
            ]
        )
        self.receiver.registered(self.info.epoch)

    def down(self) -> None:
        """The process dies and its session lapses."""
        self.store.abandon()
        self.tree.expire(self.store.session.id)


class ControlledCluster:
    """Brokers 1..n and one controller in office."""

    def __init__(
        self,
        brokers: int = 3,
        *,
        racks: Mapping[int, str] | None = None,
        tree: MemoryTree | None = None,
        defaults: Callable[[ClusterState], TopicDefaults] = lambda state: TopicDefaults(),
        check_configs: Callable[[Mapping[str, str]], None] = lambda configs: None,
        rules: ElectionRules | None = None,
        rebalance: Callable[[ClusterState], Rebalance] = lambda state: Rebalance(),
        writes: Callable[[int], Writes] = Writes,
        silence_ms: int | None = None,
    ) -> None:
        self.tree = tree or MemoryTree()
        self.store = MemoryStore(self.tree)
        self.store.start()
        ensure_cluster(self.store, "test-cluster")
        self.controller = Controller(
            defaults=defaults,
            check_configs=check_configs,
            rules=rules or TOPIC_RULES,
            rebalance=rebalance,
            writes=writes,
            silence_ms=silence_ms,
        )
        self.brokers = {BrokerId(n): FakeBroker(self.tree, n, (racks or {}).get(n)) for n in range(1, brokers + 1)}
        self.wire: deque[InFlight] = deque()
        self.replies: dict[object, tuple[Result, ...]] = {}
        self.answers: dict[object, ProposalAnswer] = {}
        self.notices: list[Notice] = []
        self.seen: list[Effect] = []
        self.now_ms = 0
        self._hooks: dict[int, Callable[[], None]] = {}
        self._writes = 0
        self._tokens = itertools.count(1)

    # --- the runtime

    def elect(self, broker_id: int = 1) -> None:
        mandate = campaign(self.store, BrokerId(broker_id), TimestampMs(0), Nowhere())
        assert mandate is not None
        notices = configs.read_changes(self.store).notices
        found = snapshot.load(self.store)
        broker = self.brokers.get(BrokerId(broker_id))
        told = ClusterState() if broker is None else broker.receiver.state
        self.feed(Elected(BrokerId(broker_id), *mandate, found.state, found.deleting, notices, found.ids, told))

    def depose(self) -> None:
        """Another controller is elected; ours has not heard of it."""
        resign(self.store)
        other = MemoryStore(self.tree)
        other.start()
        assert campaign(other, BrokerId(99), TimestampMs(0), Nowhere()) is not None

    def feed(self, event: Event) -> None:
        """Give the core an event and carry out what it wants, and what follows from that."""
        todo = deque(self.controller.handle(event))
        while todo:
            effect = todo.popleft()
            self.seen.append(effect)
            match effect:
                case Write():
                    todo += self.controller.handle(self._write(effect))
                case Remove():
                    todo += self.controller.handle(self._remove(effect))
                case Send(broker_id, message):
                    self.wire.append(InFlight(broker_id, message.sequence, message.encode()))
                case Reply(token, results):
                    self.replies[token] = results
                case Answer(token, answer):
                    self.answers[token] = type(answer).decode(answer.encode())
                case Notice():
                    self.notices.append(effect)
                case Reload():
                    todo += self.controller.handle(Loaded(*snapshot.load(self.store)))
                case Resign():
                    resign(self.store)
                    todo += self.controller.handle(Deposed())
                case StepDown():
                    todo += self.controller.handle(Deposed())

    def _write(self, effect: Write) -> Event:
        try:
            for multi in effect.multis:
                self._writes += 1
                self._hooks.pop(self._writes, lambda: None)()
                assert isinstance(multi[0], Check)
                assert multi[0].path == paths.CONTROLLER_EPOCH, "every write is one of this mandate"
                self.store.multi(multi)
        except StoreError as error:
            return WriteFailed(effect.token, error)
        return Written(effect.token)

    def _remove(self, effect: Remove) -> Event:
        try:
            for node in effect.nodes:
                self._writes += 1
                self._hooks.pop(self._writes, lambda: None)()
                delete_tree(self.store, node, effect.checks)
        except StoreError as error:
            return WriteFailed(effect.token, error)
        return Written(effect.token)

    # --- the wire

    def deliver_one(self, *, twice: bool = False) -> None:
        """The oldest message arrives and is answered; ``twice``: it arrives again."""
        message = self.wire.popleft()
        broker = self.brokers[message.to]
        acks = [broker.receiver.receive(message.payload, _act).encode() for _ in range(2 if twice else 1)]
        for ack in acks:
            self.feed(Acked(Ack.decode(ack)))

    def deliver(self) -> None:
        """All messages arrive, and those that follow from the answers."""
        while self.wire:
            self.deliver_one()

    def lose_one(self, *, answer_only: bool = False) -> None:
        """The oldest message gets lost, or only the answer to it."""
        message = self.wire.popleft()
        if answer_only:
            self.brokers[message.to].receiver.receive(message.payload, _act)
        self.feed(SendFailed(message.to, message.sequence))

    # --- what happens

    def before_write(self, hook: Callable[[], None], nth: int = 1) -> None:
        """Run ``hook`` once, before the next write (or the nth from now) reaches the store."""
        self._hooks[self._writes + nth] = hook

    def forget_hooks(self) -> None:
        self._hooks.clear()

    def brokers_changed(self) -> None:
        self.feed(BrokersChanged(snapshot.load_brokers(self.store)))

    def tick(self, ms: int = 100) -> None:
        self.now_ms += ms
        self.feed(Tick(MonotonicMs(self.now_ms)))

    def create(self, *topics: NewTopic, validate_only: bool = False, timeout_ms: int = 10_000) -> object:
        """Ask for topics; answers the token under which ``replies`` will have the answer."""
        token = next(self._tokens)
        ids = tuple(TopicId(UUID(int=token << 32 | n)) for n in range(1, len(topics) + 1))
        deadline = MonotonicMs(self.now_ms + timeout_ms)
        self.feed(TopicCreateRequested(token, topics, ids, deadline, validate_only))
        return token

    def grow(self, *topics: NewPartitions, validate_only: bool = False, timeout_ms: int = 10_000) -> object:
        """Ask for more partitions; answers the token, as :meth:`create`."""
        token = next(self._tokens)
        deadline = MonotonicMs(self.now_ms + timeout_ms)
        self.feed(PartitionsCreateRequested(token, topics, deadline, validate_only))
        return token

    def delete(self, *topics: TopicName | TopicId, timeout_ms: int = 10_000) -> object:
        token = next(self._tokens)
        self.feed(TopicDeleteRequested(token, topics, MonotonicMs(self.now_ms + timeout_ms)))
        return token

    def elect_leaders(self, *tps: TopicPartition, unclean: bool = False, timeout_ms: int = 10_000) -> object:
        token = next(self._tokens)
        self.feed(ElectionRequested(token, tps, MonotonicMs(self.now_ms + timeout_ms), unclean))
        return token

    def reassign(self, *partitions: NewReplicas, timeout_ms: int = 10_000, **more: bool) -> object:
        token = next(self._tokens)
        self.feed(ReassignmentRequested(token, partitions, MonotonicMs(self.now_ms + timeout_ms), **more))
        return token

    def propose(self, proposal: Proposal) -> object:
        """A broker asks; answers the token under which ``answers`` will have the answer."""
        token = next(self._tokens)
        self.feed(Proposed(token, decode_proposal(proposal.encode())))
        return token

    def propose_isr(self, tp: TopicPartition, *members: int) -> object:
        """The partition's leader wants these in its ISR, in the incarnations that it knows; see :meth:`propose`."""
        state = self.controller.state
        wanted = state.partition(tp)
        assert wanted is not None
        isr = tuple((BrokerId(n), self.brokers[BrokerId(n)].info.epoch) for n in members)
        change = IsrChange(tp, state.topics[tp.topic].id, wanted.leader_epoch, wanted.version, isr)
        leader = self.brokers[wanted.leader].info
        return self.propose(ProposeIsr(leader.id, leader.epoch, state.controller_epoch, (change,)))

    def fence(self, broker_id: int) -> None:
        """All signs say that the broker is dead."""
        self.feed(Fence(BrokerId(broker_id), self.controller.state.brokers[BrokerId(broker_id)].epoch))

    def configure(self, name: TopicName, overrides: Mapping[str, str]) -> None:
        """Somebody changes a topic's overrides."""
        self.store.set(paths.topic_config(name), paths.encode_config(overrides))
        self.feed(ConfigChanged(overrides, topic=name))

    def take_notices(self) -> None:
        """The controller hears that there are config notices."""
        told = configs.read_changes(self.store)
        for change in told.changes:
            self.feed(ConfigChanged(change.configs, topic=change.topic, broker=change.broker))
        self.feed(NoticesRead(told.notices))

    def lose(self, *broker_ids: int) -> None:
        """These processes die, and the controller hears of it."""
        for n in broker_ids:
            self.brokers[BrokerId(n)].down()
        self.brokers_changed()

    def bring_back(self, *broker_ids: int, lost_data: bool = False) -> None:
        """New processes of these, of which the controller hears."""
        for n in broker_ids:
            self.brokers[BrokerId(n)].up(lost_data=lost_data)
        self.brokers_changed()


# --- for tests of the core

TOPIC_RULES = ElectionRules(
    min_isr=lambda topic, state: int(topic.configs.get("min.insync.replicas", 1)),
    unclean=lambda topic, state: topic.configs.get("unclean.leader.election.enable") == "true",
)
"""As the topics' own settings say."""


def topic(name: str, partitions: int = 1, **more: object) -> NewTopic:
    return NewTopic(TopicName(name), partitions, **more)  # type: ignore[arg-type]


def created(cluster: ControlledCluster, *topics: NewTopic) -> tuple[Result, ...]:
    """The answer to a CreateTopics once everything is delivered."""
    token = cluster.create(*topics)
    cluster.deliver()
    return cluster.replies[token]


def outcome(cluster: ControlledCluster, token: object) -> Outcome:
    """The answer to a proposal about one partition."""
    answer = cluster.answers[token]
    assert isinstance(answer, IsrAnswer)
    [only] = answer.outcomes
    return only


def partition(cluster: ControlledCluster, name: str = "flights", index: int = 0) -> PartitionState:
    found = cluster.controller.state.partition(TopicPartition(TopicName(name), PartitionIndex(index)))
    assert found is not None
    return found


def assert_agreement(cluster: ControlledCluster) -> None:
    """The core, the store and every live broker hold the same state."""
    state = cluster.controller.state
    loaded = configs.with_known_overrides(snapshot.load(cluster.store).state, state)
    assert loaded.topics == state.topics
    assert loaded.brokers == state.brokers
    for broker_id in state.brokers:
        assert cluster.brokers[broker_id].receiver.state == state
