"""Whatever happens, once it stops: the controller, the store and all brokers agree, and nothing went backwards.

A script of random steps drives a :class:`ControlledCluster`: topics made, moved and deleted, ISRs changed, brokers that
die, come back with or without their data, restart unseen, are fenced or drained or lose a disk, writes and messages
that get lost, a controller that is deposed in the middle. Every single write is looked at by :class:`Watched`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, auto

from hypothesis import given
from hypothesis import strategies as st

from kit.controlled import ControlledCluster
from raylog.coordination.control import reassignment
from raylog.coordination.control.proposals import Drain, OfflineReplica, ReplicasOffline
from raylog.coordination.controller.events import Deposed, Event, NewPartitions, NewReplicas, NewTopic, Write, Written
from raylog.coordination.metadata import paths, snapshot
from raylog.coordination.metadata.model import ClusterState, PartitionState
from raylog.coordination.store.port import Check
from raylog.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)

BROKERS = 4


class Step(Enum):
    CREATE = auto()
    GROW = auto()
    DELETE = auto()
    CONFIGURE = auto()
    PROPOSE_ISR = auto()
    PROPOSE_ALL = auto()
    REASSIGN = auto()
    CANCEL = auto()
    ELECT = auto()
    ELECT_UNCLEAN = auto()
    DISK_FAILS = auto()
    DRAIN = auto()
    FENCE = auto()
    DOWN = auto()
    DOWN_SEEN = auto()
    UP = auto()
    UP_SEEN = auto()
    UP_WITHOUT_DATA = auto()
    RESTART_UNSEEN = auto()
    RESTART_DURING_THE_NEXT_WRITE = auto()
    TELL_BROKERS = auto()
    LOSE_A_WRITES_ANSWER = auto()
    DELIVER = auto()
    DELIVER_TWICE = auto()
    LOSE_MESSAGE = auto()
    LOSE_ANSWER = auto()
    TICK = auto()
    RESIGN = auto()
    RESUME = auto()
    DEPOSE_DURING_THE_NEXT_WRITE = auto()


Replica = tuple[TopicId, TopicPartition]


@dataclass
class Watched:
    """What must hold of every write that the store took, judged by what the store held right before."""

    leaders: dict[tuple[Replica, LeaderEpoch], tuple[BrokerId, BrokerEpoch]] = field(default_factory=dict)
    unclean: set[TopicPartition] = field(default_factory=set)
    """Partitions for which an unclean election was asked for."""

    def written(self, write: Write, before: ClusterState, after: ClusterState, intact_since: dict[int, int]) -> None:
        checks = {(op.path, op.version) for multi in write.multis for op in multi if isinstance(op, Check)}
        for multi in write.multis:
            assert isinstance(multi[0], Check), "no write without the mandate"
            assert multi[0].path == paths.CONTROLLER_EPOCH
        for topic in after.topics.values():
            for tp, partition in topic.topic_partitions():
                old = before.partition(tp) if topic.id in before.topics_by_id else None
                if partition.is_online and partition != old:
                    self._led(checks, (topic.id, tp), partition)
                    if old is not None and old.version != -1:
                        self._followed(tp, old, partition, intact_since)

    def _led(self, checks: set[tuple[str, int]], replica: Replica, p: PartitionState) -> None:
        assert p.leader in p.isr
        assert not set(p.isr) & set(p.elr)
        assert {*p.isr, *p.elr} <= {*p.replicas}
        for broker in p.isr:
            named = (paths.broker_epoch(broker), p.incarnations[broker])
            assert named in checks, "no member whose incarnation the write does not check"
        life = (p.leader, p.incarnations[p.leader])
        assert self.leaders.setdefault((replica, p.leader_epoch), life) == life, "one leader in one life per epoch"

    def _followed(
        self, tp: TopicPartition, old: PartitionState, new: PartitionState, intact_since: dict[int, int]
    ) -> None:
        """Over those of the ISR and ELR that kept their data, dead ones included, nobody leads who did not."""
        assert new.leader_epoch >= old.leader_epoch
        if new.leader_epoch == old.leader_epoch or tp in self.unclean:
            return
        intact = {b for b in (*old.isr, *old.elr) if intact_since[b] <= old.incarnations[b]}
        assert new.leader in intact or not intact


class WatchedCluster(ControlledCluster):
    """Looks at each write. ``intact_since`` is of all brokers, also of dead ones."""

    def __init__(self) -> None:
        self.watched = Watched()
        super().__init__(BROKERS)

    def _write(self, effect: Write) -> Event:
        for single in effect.multis:
            before = snapshot.load(self.store).state
            outcome = super()._write(replace(effect, multis=(single,)))
            if not isinstance(outcome, Written):
                return outcome
            intact_since = {int(b): int(broker.info.intact_since) for b, broker in self.brokers.items()}
            self.watched.written(
                replace(effect, multis=(single,)), before, snapshot.load(self.store).state, intact_since
            )
        return Written(effect.token)


class Script:
    """One run. ``number`` chooses which topic or broker a step is about."""

    def __init__(self) -> None:
        self.cluster = WatchedCluster()
        self.cluster.elect()
        self.epochs: dict[Replica, LeaderEpoch] = {}
        self.gone: set[Replica] = set()
        self.to_restart: set[BrokerId] = set()

    def step(self, step: Step, number: int) -> None:
        cluster, broker_id = self.cluster, BrokerId(number % BROKERS + 1)
        broker, name = cluster.brokers[broker_id], TopicName(f"t{number % 3}")
        tp = TopicPartition(name, PartitionIndex(number // 3 % 2))
        is_up = cluster.tree.is_live(broker.store.session.id)
        match step:
            case Step.CREATE:
                cluster.create(NewTopic(name, number % 4 + 1, number // 3 % BROKERS + 1))
            case Step.GROW:
                cluster.grow(NewPartitions(name, number % 4 + 2))
            case Step.DELETE:
                cluster.delete(name)
            case Step.CONFIGURE if cluster.store.exists(paths.topic_config(name)):
                cluster.configure(name, {"min.insync.replicas": str(number // 3 % 3 + 1)})
            case Step.PROPOSE_ISR:
                self._propose(tp, keep=number)
            case Step.PROPOSE_ALL:
                self._propose_all()
            case Step.REASSIGN:
                replicas = tuple(BrokerId((number + n) % BROKERS + 1) for n in range(number // BROKERS + 1))
                cluster.reassign(NewReplicas(tp, replicas))
            case Step.CANCEL:
                cluster.reassign(NewReplicas(tp, None))
            case Step.ELECT:
                cluster.elect_leaders(tp)
            case Step.ELECT_UNCLEAN if name == "t0":
                cluster.watched.unclean.add(tp)
                cluster.elect_leaders(tp, unclean=True)
            case Step.DISK_FAILS:
                self._fail_disk(tp, broker_id)
            case Step.DRAIN:
                self.to_restart.add(broker_id)
                cluster.propose(Drain(broker_id, broker.info.epoch, ControllerEpoch(0), cancel=number > 9))
            case Step.FENCE if cluster.controller.is_active and broker_id in cluster.controller.state.brokers:
                cluster.fence(broker_id)
                broker.down()
            case Step.DOWN if is_up:
                broker.down()
            case Step.DOWN_SEEN if is_up:
                cluster.lose(broker_id)
            case Step.UP if not is_up:
                broker.up()
            case Step.UP_SEEN if not is_up:
                cluster.bring_back(broker_id)
            case Step.UP_WITHOUT_DATA if not is_up:
                broker.up(lost_data=True)
            case Step.RESTART_UNSEEN if is_up:
                self._restart(broker_id)
            case Step.RESTART_DURING_THE_NEXT_WRITE:
                cluster.before_write(lambda: self._restart(broker_id, lost_data=number > 5), number % 4 + 1)
            case Step.TELL_BROKERS:
                cluster.brokers_changed()
            case Step.LOSE_A_WRITES_ANSWER:
                cluster.before_write(cluster.store.lose_next_answer, number % 4 + 1)
            case Step.DELIVER if cluster.wire:
                cluster.deliver_one()
            case Step.DELIVER_TWICE if cluster.wire:
                cluster.deliver_one(twice=True)
            case Step.LOSE_MESSAGE if cluster.wire:
                cluster.lose_one()
            case Step.LOSE_ANSWER if cluster.wire:
                cluster.lose_one(answer_only=True)
            case Step.TICK:
                cluster.tick(number * 60_000)
            case Step.RESIGN:
                cluster.feed(Deposed())
                if cluster.store.exists(paths.CONTROLLER):
                    cluster.store.delete(paths.CONTROLLER)
                cluster.elect(broker_id)
            case Step.RESUME if cluster.store.exists(paths.CONTROLLER):
                cluster.feed(Deposed())
                cluster.elect(broker_id)
            case Step.DEPOSE_DURING_THE_NEXT_WRITE:
                cluster.before_write(self._depose_and_leave, number % 4 + 1)
        if not cluster.controller.is_active:
            cluster.elect(broker_id)
        self.check()

    def _restart(self, broker_id: BrokerId, *, lost_data: bool = False) -> None:
        broker = self.cluster.brokers[broker_id]
        if self.cluster.tree.is_live(broker.store.session.id):
            broker.down()
        broker.up(lost_data=lost_data)

    def _propose(self, tp: TopicPartition, keep: int) -> None:
        """The leader, as the controller knows it, wants those whose bit is set in ``keep``, and itself."""
        partition = self.cluster.controller.state.partition(tp)
        if partition is not None and partition.is_online:
            members = [b for b in partition.replicas if keep >> b & 1 or b == partition.leader]
            self.cluster.propose_isr(tp, *members)

    def _propose_all(self) -> None:
        for tp, _ in list(self.cluster.controller.state.partitions()):
            self._propose(tp, keep=-1)

    def _fail_disk(self, tp: TopicPartition, broker_id: BrokerId) -> None:
        topic = self.cluster.controller.state.topics.get(tp.topic)
        if topic is not None:
            self.to_restart.add(broker_id)
            epoch = self.cluster.brokers[broker_id].info.epoch
            lost = (OfflineReplica(tp, topic.id),)
            self.cluster.propose(ReplicasOffline(broker_id, epoch, ControllerEpoch(0), lost))

    def _depose_and_leave(self) -> None:
        """Another controller is elected and gives up at once, so that ours may stand again."""
        store = self.cluster.store
        found = store.get(paths.CONTROLLER_EPOCH)
        assert found is not None
        if store.exists(paths.CONTROLLER):
            store.delete(paths.CONTROLLER)
        store.set(paths.CONTROLLER_EPOCH, paths.encode_number(int(found.data) + 1))

    def check(self) -> None:
        """After every step: leaders are in the ISR, leader epochs never fall, what is being deleted never returns."""
        for topic in snapshot.load(self.cluster.store).state.topics.values():
            for tp, partition in topic.topic_partitions():
                assert not partition.is_online or partition.leader in partition.isr
                self._check_epoch(topic.id, tp, partition)

    def _check_epoch(self, topic_id: TopicId, tp: TopicPartition, partition: PartitionState) -> None:
        key = (topic_id, tp)
        if partition.version == -1:
            self.gone |= {key} & self.epochs.keys()
        else:
            assert key not in self.gone
            assert partition.leader_epoch >= self.epochs.get(key, -1)
            self.epochs[key] = partition.leader_epoch

    def heal(self) -> None:
        """Everybody is up, is told, and every message arrives; followers catch up."""
        cluster = self.cluster
        cluster.forget_hooks()
        if not cluster.controller.is_active:
            cluster.elect()
        for broker_id, broker in cluster.brokers.items():
            if broker_id in self.to_restart or not cluster.tree.is_live(broker.store.session.id):
                self._restart(broker_id)
        for _ in range(3):
            cluster.brokers_changed()
            cluster.tick(20_000)
            cluster.deliver()
            self._propose_all()
            cluster.deliver()
        self.check()


steps = st.lists(st.tuples(st.sampled_from(Step), st.integers(0, 11)), max_size=40)


@given(steps)
def test_all_agree_when_it_is_over(script: list[tuple[Step, int]]) -> None:
    run = Script()
    for step, number in script:
        run.step(step, number)
    run.heal()
    cluster, state = run.cluster, run.cluster.controller.state
    loaded, deleting, _ = snapshot.load(cluster.store)
    assert (loaded.topics, loaded.brokers, deleting) == (state.topics, state.brokers, frozenset())
    for _, partition in state.partitions():
        assert partition.is_online
        assert set(partition.isr) == set(partition.replicas)
        assert partition.elr == ()
        assert not reassignment.is_under_way(partition)
    assert all(broker.receiver.state == state for broker in cluster.brokers.values())
    assert not cluster.controller._requests, "every request was answered"
    assert not cluster.controller._proposals, "and every proposal"
