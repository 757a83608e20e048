"""Whatever happens, once it stops: the controller, the store and all brokers agree, and nothing went backwards.

A script of random steps drives a :class:`ControlledCluster`: topics made and deleted, brokers that die, come back and
restart unseen, writes and messages that get lost, a controller that is deposed in the middle.
"""

from __future__ import annotations

from enum import Enum, auto

from hypothesis import given
from hypothesis import strategies as st

from kit.controlled import ControlledCluster
from raylog.coordination import paths, snapshot
from raylog.coordination.controller_events import Deposed, NewPartitions, NewTopic
from raylog.coordination.model import PartitionState
from raylog.protocol.ids import BrokerId, LeaderEpoch, TopicId, TopicName, TopicPartition


class Step(Enum):
    CREATE = auto()
    GROW = auto()
    DELETE = auto()
    DOWN = auto()
    UP = auto()
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


class Script:
    """One run. ``number`` chooses which topic or broker a step is about."""

    def __init__(self) -> None:
        self.cluster = ControlledCluster()
        self.cluster.elect()
        self.epochs: dict[tuple[TopicId, TopicPartition], LeaderEpoch] = {}
        self.gone: set[tuple[TopicId, TopicPartition]] = set()

    def step(self, step: Step, number: int) -> None:
        cluster, broker_id = self.cluster, BrokerId(number % 3 + 1)
        broker, name = cluster.brokers[broker_id], TopicName(f"t{number % 3}")
        is_up = cluster.tree.is_live(broker.store.session.id)
        match step:
            case Step.CREATE:
                cluster.create(NewTopic(name, number % 4 + 1))
            case Step.GROW:
                cluster.grow(NewPartitions(name, number % 4 + 2))
            case Step.DELETE:
                cluster.delete(name)
            case Step.DOWN if is_up:
                broker.down()
            case Step.UP if not is_up:
                broker.up()
            case Step.RESTART_UNSEEN if is_up:
                self._restart(broker_id)
            case Step.RESTART_DURING_THE_NEXT_WRITE:
                cluster.before_write(lambda: self._restart(broker_id), number % 4 + 1)
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
                cluster.tick()
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

    def _restart(self, broker_id: BrokerId) -> None:
        broker = self.cluster.brokers[broker_id]
        if self.cluster.tree.is_live(broker.store.session.id):
            broker.down()
        broker.up()

    def _depose_and_leave(self) -> None:
        """Another controller is elected and gives up at once, so that ours may stand again."""
        store = self.cluster.store
        found = store.get(paths.CONTROLLER_EPOCH)
        assert found is not None
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
        """Everybody is up, is told, and every message arrives."""
        cluster = self.cluster
        cluster.forget_hooks()
        for broker in cluster.brokers.values():
            if not cluster.tree.is_live(broker.store.session.id):
                broker.up()
        for _ in range(3):
            cluster.brokers_changed()
            cluster.tick(20_000)
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
    loaded, deleting = snapshot.load(cluster.store)
    assert (loaded.topics, loaded.brokers, deleting) == (state.topics, state.brokers, frozenset())
    assert all(partition.is_online for _, partition in state.partitions())
    assert all(broker.receiver.state == state for broker in cluster.brokers.values())
    assert not cluster.controller._requests, "every request was answered"
