"""A whole cluster under one seed: what stands where, and what a fault does to it.

A world is made of a :class:`Design`, the cores that its brokers use. The product's own is the default; ``planted`` has
ten others, each with one mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from raylog.broker.partition import Partition
from raylog.coordination import paths
from raylog.coordination.controller import Controller
from raylog.coordination.controller_events import NewReplicas, NewTopic
from raylog.coordination.leadership import ElectionRules
from raylog.coordination.lease import Lease
from raylog.coordination.registration import BrokerRegistration
from raylog.protocol.ids import BrokerId, PartitionIndex, TopicId, TopicName, TopicPartition

from .clients import Client, Consumer, EndReader, Producer
from .disk import Disk
from .engine import Engine, Process, Thread, Violation
from .invariants import MATCHING, Checker
from .network import Network, Traffic
from .zookeeper import Ensemble, Weather

TOPIC = TopicName("flights")
MIN_ISR = 2
LAG_MS = 1_200
"""replica.lag.time.max.ms"""
REPLICAS = 3


def controller(min_isr: int) -> Controller:
    return Controller(rules=ElectionRules(min_isr=lambda topic, state: min_isr))


@dataclass(frozen=True)
class Design:
    """The cores of a broker."""

    name: str = "raylog"
    registration: Callable[..., BrokerRegistration] = BrokerRegistration
    lease: Callable[[], Lease] = Lease
    controller: Callable[[int], Controller] = controller
    partition: Callable[..., Partition] = Partition


class World:
    """One run's cluster."""

    def __init__(self, seed: int, design: Design, *, brokers: int, partitions: int, trace: bool = False) -> None:
        from .broker import SimBroker  # noqa: PLC0415 (a broker knows its world)

        self._make_broker = SimBroker
        self.design = design
        self.min_isr, self.lag_ms = MIN_ISR, LAG_MS
        self.engine = Engine(seed)
        if trace:
            self.engine.lines = []
        self.ensemble = Ensemble(self.engine)
        self.weather = Weather()
        self.traffic = Traffic()
        self.network = Network(self.engine, self.traffic)
        self.cut_from_zookeeper: set[int] = set()
        self.ids = [BrokerId(n) for n in range(1, brokers + 1)]
        self.disks = {broker: Disk(UUID(int=broker)) for broker in self.ids}
        self.brokers: dict[BrokerId, SimBroker] = {}
        self.checker = Checker(self.engine, self.disks, self.min_isr)
        self.ensemble.on_write = self.checker.stored
        self.checker.is_registered = lambda broker: self.ensemble.get(paths.broker(BrokerId(broker))) is not None
        self.tps = [TopicPartition(TOPIC, PartitionIndex(n)) for n in range(partitions)]
        self._lives = 0
        self.is_healed = False
        self._admin = Thread(Process("admin"))
        for broker in self.ids:
            self.start_broker(broker)
        self.producers = [
            Producer(*self._client(100 + n), tp=tp, max_in_flight=1 + n % 3, interval_ms=40)
            for n, tp in enumerate([*self.tps, *self.tps])
        ]
        self.consumers = [Consumer(*self._client(200 + n), tps=self.tps) for n in range(2)]
        self.readers = [EndReader(*self._client(300 + n), tps=self.tps) for n in range(2)]
        self._create_topic()

    def _client(self, number: int) -> tuple[Any, ...]:
        return number, self.engine, self.network, self.ids, self.checker

    @property
    def clients(self) -> list[Client]:
        return [*self.producers, *self.consumers, *self.readers]

    def _create_topic(self) -> None:
        """Ask every broker until the topic is there: one of them is the controller."""
        if all(self.checker.partitions[tp].state.leader_epoch >= 0 for tp in self.tps):
            return
        new = NewTopic(TOPIC, len(self.tps), REPLICAS)
        for broker in self.ids:
            request = (new, TopicId(UUID(int=1)))
            self.network.call(400, self._admin, broker, "create", request, 1_000, lambda answer: None)
        self.engine.at(500, self._admin, self._create_topic)

    def at(self, time: int, action: Callable[[], None]) -> None:
        """Let something happen to the cluster at that moment."""
        self.engine.at(time - self.engine.now, self._admin, action)

    def controller(self) -> BrokerId:
        """The broker that thinks it is the controller, the first one when there is none."""
        return next((b.id for b in self.brokers.values() if b.process.alive and b.controlling.is_active), self.ids[0])

    def leader(self, tp: TopicPartition) -> BrokerId:
        """As ZooKeeper says; the first broker while there is none."""
        leader = self.checker.partitions[tp].state.leader
        return BrokerId(leader) if leader >= 0 else self.ids[0]

    # --- what happens to brokers

    def is_up(self, broker: BrokerId) -> bool:
        return broker in self.brokers and self.brokers[broker].process.alive

    def start_broker(self, broker: BrokerId) -> None:
        if self.is_up(broker):
            return
        self._lives += 1
        self.brokers[broker] = new = self._make_broker(self, broker, self._lives)
        self.network.servers[broker] = new
        self.engine.note(f"broker {broker} starts as {new.process.name}")
        new.start()

    def kill(self, broker: BrokerId) -> None:
        """kill -9 of the process: the page cache stays."""
        if self.is_up(broker):
            self.engine.note(f"broker {broker}: kill -9")
            self.brokers[broker].crash()
            self._hint(broker)

    def crash_machine(self, broker: BrokerId) -> None:
        """The machine dies: what was not synced is gone, and nobody is told."""
        if not self.checker.may_damage(broker):
            return
        self.engine.note(f"broker {broker}: its machine crashes, unsynced data is lost")
        if self.is_up(broker):
            self.brokers[broker].crash()
        self.network.servers.pop(broker, None)
        self._damage(broker)
        self.disks[broker].crash_machine()

    def wipe(self, broker: BrokerId) -> None:
        """The machine dies and comes back with an empty disk."""
        if not self.checker.may_damage(broker):
            return
        self.engine.note(f"broker {broker}: its disk is wiped")
        if self.is_up(broker):
            self.brokers[broker].crash()
        self.network.servers.pop(broker, None)
        self._damage(broker)
        self._lives += 1
        self.disks[broker].wipe(UUID(int=1_000 + self._lives))

    def _damage(self, broker: BrokerId) -> None:
        checker = self.checker
        checker.damaged[broker] = max(checker.damaged.get(broker, -1), checker.broker_epochs.get(broker, 0))

    def stop(self, broker: BrokerId, back_ms: int) -> None:
        """An orderly stop: drained if the controller answers, then flushed; back after ``back_ms``."""
        if not self.is_up(broker):
            return
        process = self.brokers[broker]

        def stop() -> None:
            if process.process.alive:
                self.engine.note(f"broker {broker}: clean stop")
                process.stop_clean()
                self._hint(broker)
                self.at(self.engine.now + (0 if self.is_healed else back_ms), partial(self.start_broker, broker))

        self.engine.note(f"broker {broker}: drains")
        process.drain(stop)

    def pause(self, broker: BrokerId, until: int) -> None:
        """SIGSTOP; SIGCONT comes at ``until``."""
        if self.is_up(broker):
            process, store = self.brokers[broker].process, self.brokers[broker].store
            self.engine.note(f"broker {broker}: paused until {until} ms")
            process.paused_until = max(process.paused_until, until)
            self.engine.at(until - self.engine.now, self._admin, store.look_again)

    def sync(self, broker: BrokerId) -> None:
        """The page cache is written back."""
        for files in self.disks[broker].files.values():
            files.synced = len(files.batches)

    def cut_zookeeper(self, broker: BrokerId) -> None:
        self.engine.note(f"broker {broker}: cut from zookeeper")
        self.cut_from_zookeeper.add(broker)
        if self.is_up(broker):
            self.brokers[broker].store.cut()

    def mend_zookeeper(self, broker: BrokerId) -> None:
        self.cut_from_zookeeper.discard(broker)
        if self.is_up(broker):
            self.brokers[broker].store.mend()

    def expire(self, broker: BrokerId) -> None:
        """ZooKeeper ends the session for no reason that the broker knows."""
        if self.is_up(broker) and self.brokers[broker].store.is_started:
            store = self.brokers[broker].store
            self.engine.note(f"broker {broker}: zookeeper ends its session")
            # Its lease runs on until it hears of it, and that is not its fault.
            self.checker.wrongly_fenced.add((broker, self.brokers[broker].info.epoch))
            try:
                self.ensemble.expire(store.session.id)
            finally:
                self.ensemble.tell()

    # --- what happens to the network

    def storm(self, rate: float) -> None:
        traffic = self.traffic
        traffic.lost, traffic.doubled, traffic.slow = rate / 2, rate, rate
        self.engine.note(f"network: rate {rate}")

    def zookeeper_storm(self, rate: float) -> None:
        self.weather.lost = self.weather.answer_lost = rate / 2
        self.engine.note(f"zookeeper: rate {rate}")

    def reassign(self, replicas: tuple[BrokerId, ...]) -> None:
        self.engine.note(f"reassignment to {replicas}")
        for broker in self.brokers.values():
            if broker.process.alive:
                for tp in self.tps:
                    broker.controlling.reassign(NewReplicas(tp, replicas))

    # --- failover by hint

    def _hint(self, dead: BrokerId) -> None:
        """Those that kept a connection to it find it refused, within milliseconds."""
        for broker in self.ids:
            if broker != dead and self.is_up(broker):
                other = self.brokers[broker]
                epoch = self.brokers[dead].info.epoch
                self.engine.at(2, other.serving, partial(self._refused, other, dead, epoch))

    def _refused(self, observer: Any, dead: BrokerId, epoch: Any) -> None:
        if self.network.refuses(observer.id, dead):
            self._tell_hint(observer, dead, epoch)

    def _tell_hint(self, observer: Any, dead: BrokerId, epoch: Any) -> None:
        if observer.controlling.is_active:
            observer.controlling.fence(dead, epoch)
        elif observer.receiver.state.controller_id == dead:
            observer.controlling.controller_hint(dead)

    def wrong_hint(self, broker: BrokerId) -> None:
        """All signs say that it is dead, and it is not."""
        if not self.is_up(broker):
            return
        self.engine.note(f"broker {broker}: a wrong hint says that it is dead")
        epoch = self.brokers[broker].info.epoch
        self.checker.wrongly_fenced.add((broker, epoch))
        for other in self.brokers.values():
            if other.id != broker and other.process.alive:
                self.engine.at(0, other.serving, partial(self._tell_hint, other, broker, epoch))

    # --- the end

    def heal(self) -> None:
        """Nothing is broken any more."""
        self.is_healed = True
        self.traffic.cuts.clear()
        self.traffic.far.clear()
        self.weather.is_slow = False
        self.storm(0.0)
        self.zookeeper_storm(0.0)
        for broker in self.ids:
            self.cut_from_zookeeper.discard(broker)
            self.start_broker(broker)
            self.brokers[broker].store.mend()

    def unhealed(self) -> str:
        """What is still not well; empty when every partition has a leader and a full ISR."""
        for tp in self.tps:
            partition = self.checker.partitions[tp]
            state = partition.state
            if state.leader < 0 or len(state.isr) < REPLICAS or not self.brokers[BrokerId(state.leader)].process.alive:
                return f"{tp} is not well: {state}"
        return ""

    def stop_producing(self) -> None:
        for producer in self.producers:
            producer.stopped = True

    def unfinished(self) -> str:
        """What is still under way: batches that are not acknowledged, consumers and replicas that lag."""
        for producer in self.producers:
            if not producer.is_done:
                return f"producer {producer.number} has batches without an answer for {producer.tp}"
        for tp in self.tps:
            partition = self.checker.partitions[tp]
            end = partition.committed_end
            for consumer in self.consumers:
                if consumer.positions[tp] != end:
                    return f"consumer {consumer.number} is at {consumer.positions[tp]} of {tp}, {end} is committed"
            for broker in partition.state.isr:
                replica = self.brokers[BrokerId(broker)].replicas.partitions.get(tp)
                if replica is None:
                    return f"broker {broker} has not been told of {tp}"
                if replica.log.offsets.end.offset != end or replica.high_watermark != end:
                    offsets = replica.log.offsets
                    return f"{tp} at broker {broker} has {offsets}, {end} is committed"
        return ""

    def compare(self) -> None:
        """All replicas hold what is committed, from the first batch to the last."""
        for tp in self.tps:
            partition = self.checker.partitions[tp]
            for broker in partition.state.isr:
                for here, there in zip(
                    self.disks[BrokerId(broker)].files[tp].batches, partition.committed, strict=True
                ):
                    if here != there:
                        raise Violation(MATCHING, f"{tp} at broker {broker}: {here} is not {there}")
