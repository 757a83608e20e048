"""A whole cluster under one seed: what stands where, and what a fault does to it.

A world is made of a :class:`Design`, the cores that its brokers use. The product's own is the default; ``planted`` has
others, each with one mistake.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from errno import EIO
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from raylog.broker.partition.partition import Partition
from raylog.coordination.control.leadership import ElectionRules
from raylog.coordination.control.peer_control import Receiver
from raylog.coordination.controller.controller import Controller
from raylog.coordination.controller.events import (
    ElectionRequested,
    Event,
    NewPartitions,
    NewReplicas,
    NewTopic,
    PartitionsCreateRequested,
    ReassignmentRequested,
    TopicDeleteRequested,
)
from raylog.coordination.membership.lease import Lease
from raylog.coordination.membership.registration import BrokerRegistration
from raylog.coordination.metadata import paths
from raylog.coordination.store.port import ANY_VERSION, Create, Op, OpResult, Set, StoreError
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import BrokerId, MonotonicMs, Offset, PartitionIndex, TopicId, TopicName, TopicPartition

from .apart import STAYS_MS, Away, check_choice
from .clients import Consumer, DeleteRequest, EndReader, Producer
from .disk import Disk, SimLog
from .engine import Engine, Process, Thread, Violation
from .groups import GroupDesign, SimGroups
from .invariants import MATCHING, Checker
from .local import SimPartitions
from .loops import RunningLoops
from .network import Network, Traffic
from .silence import SILENCE_MS
from .waits import Waits
from .zookeeper import Ensemble, Weather

TOPIC = TopicName("flights")
MIN_ISR = 2
LAG_MS = 1_200
"""replica.lag.time.max.ms"""
REPLICAS = 3
MAX_PARTITIONS = 3


MOMENTS = {
    "registers": "a broker registers",
    "elected": "a partition gets another leader",
    "shrinks": "an ISR shrinks",
    "grows": "an ISR grows",
    "office": "a controller takes office",
    "silent": "a controller gives no more work to who does not answer",
    "leads": "a broker begins to lead",
    "follows": "a broker begins to follow",
    "truncates": "a log is truncated",
    "deleted": "records are deleted, as a client is told",
    "claims": "an actor claims a partition",
    "publishes": "an actor publishes an assignment",
    "rebalances": "a generation of clients begins",
    "settles": "a generation of clients is settled",
    "coordinates": "a broker takes a group of clients over",
}
"""Steps of the protocol for which faults may wait."""


class Moment(NamedTuple):
    """One of them has come."""

    broker: BrokerId
    """Whom it is about: who registered, leads, joined, left."""
    tp: TopicPartition | None = None


def controller(min_isr: int, machine: type[Controller] = Controller, **more: Any) -> Controller:
    return machine(rules=ElectionRules(min_isr=lambda topic, state: min_isr), silence_ms=SILENCE_MS, **more)


@dataclass(frozen=True)
class Design:
    """The cores of a broker."""

    name: str = "raylog"
    registration: Callable[..., BrokerRegistration] = BrokerRegistration
    lease: Callable[[], Lease] = Lease
    loops: Callable[..., RunningLoops] = RunningLoops
    controller: Callable[[int], Controller] = controller
    partition: Callable[..., Partition] = Partition
    log: Callable[..., SimLog] = SimLog
    receiver: Callable[[BrokerId], Receiver] = Receiver
    local: Callable[..., SimPartitions] = SimPartitions
    groups: GroupDesign = field(default_factory=GroupDesign)
    reading: Callable[[], AbstractContextManager[object]] = nullcontext
    """Around all that a controller reads of the store."""


class World:
    """One run's cluster."""

    def __init__(
        self,
        seed: int,
        design: Design,
        *,
        brokers: int,
        partitions: int,
        flushes: bool = False,
        groups: bool = False,
        trace: bool = False,
    ) -> None:
        """``flushes``: flush.messages is 1. ``groups``: there are consumer groups."""
        from .broker import SimBroker  # noqa: PLC0415 (a broker knows its world)

        self._make_broker = SimBroker
        self.has_groups = groups
        self._produces_every_ms = 160 if groups else 40
        self.design = design
        self.min_isr, self.lag_ms, self.flushes = MIN_ISR, LAG_MS, flushes
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
        self._awaited: dict[str, deque[Callable[[Moment], None]]] = defaultdict(deque)
        self.away: Away | None = None
        self.damaged_values = 0
        """So many in ZooKeeper make no sense at the moment."""
        self._configs = 0
        """How often an override was set."""
        self.is_healed = False
        self.crashed: dict[int, int] = {}
        """Whose machines have, and in which incarnation last. The controller lets a member lead that was not in sync
        since only when no better one can come back, though it lost nothing where each append is flushed.
        """
        self.checker = Checker(self.engine, self.disks, self.min_isr)
        self.checker.on_moment = self.moment
        self.checker.on_state = partial(check_choice, self)
        self.checker.heard_ms = lambda broker: self.brokers[BrokerId(broker)].store.heard_ms
        self.checker.on_new_partition = self._appears
        self.checker.on_deleted = self._disappears
        self.counts = self.checker.counts
        """How often what happened: what a run has tried."""
        if flushes:
            self.counts["flush.messages=1"] += 1
        self.ensemble.on_write = self._written
        self.groups: SimGroups | None = None
        self._partitions, self._topic_ids = partitions, 1
        self.tps = [TopicPartition(TOPIC, PartitionIndex(n)) for n in range(partitions)]
        self._lives = 0
        self._admin = Thread(Process("admin"))
        self._clients = 0
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.former_producers: list[Producer] = []
        """Those of topics that are deleted."""
        for broker in self.ids:
            self.start_broker(broker)
        if groups:
            self.groups = SimGroups(self, design.groups)
        self.readers = [EndReader(*self._client(300 + n), tps=self.tps) for n in range(2)]
        self.waits = Waits(self)
        self._create_topic()

    def _written(self, ops: Sequence[Op], results: Sequence[OpResult], session: int) -> None:
        self.checker.stored(ops, results, session)
        if self.groups is not None:
            self.groups.checker.stored(ops, session)

    def _appears(self, tp: TopicPartition) -> None:
        """A partition is there: the topic is new, or has grown. It gets its clients."""
        if tp.topic != TOPIC:
            return
        if tp not in self.tps:
            self.tps.append(tp)  # those who read ends have this list
        topic_id = self.checker.topics[tp.topic]
        for _ in range(2):
            number = 100 + self._clients
            self._clients += 1
            more = {
                "tp": tp,
                "topic_id": topic_id,
                "max_in_flight": 1 + number % 3,
                "interval_ms": self._produces_every_ms,
            }
            self.producers.append(Producer(*self._client(number), **more))
        if not self.consumers:
            numbers = (10_000 + self._clients, 20_000 + self._clients)
            self.consumers += [Consumer(*self._client(number), tps=(), topic_id=topic_id) for number in numbers]
        for consumer in self.consumers:
            consumer.read(tp)

    def _disappears(self, topic: TopicName) -> None:
        """Its clients go, and it is made anew."""
        for client in (*self.producers, *self.consumers):
            client.topic_is_gone = True
        self.former_producers += self.producers
        self.producers.clear()
        self.consumers.clear()
        del self.tps[self._partitions :]
        self._topic_ids += 1
        self.engine.at(100, self._admin, self._create_topic)

    def _client(self, number: int) -> tuple[Any, ...]:
        return number, self.engine, self.network, self.ids, self.checker

    def _create_topic(self) -> None:
        """Ask every broker until the topic is there: one of them is the controller."""
        if all(
            tp in self.checker.partitions and self.checker.partitions[tp].state.leader_epoch >= 0 for tp in self.tps
        ):
            return
        new = NewTopic(TOPIC, self._partitions, REPLICAS)
        for broker in self.ids:
            request = (new, TopicId(UUID(int=self._topic_ids)))
            self.network.call(400, self._admin, broker, "create", request, 1_000, lambda answer: None)
        self.engine.at(500, self._admin, self._create_topic)

    def at(self, time: int, action: Callable[[], None]) -> None:
        """Let something happen to the cluster at that moment."""
        self.engine.at(time - self.engine.now, self._admin, action)

    def await_moment(self, name: str, strike: Callable[[Moment], None]) -> None:
        """Call ``strike`` when the next such moment comes."""
        self._awaited[name].append(strike)

    def moment(self, name: str, broker: int, tp: TopicPartition | None = None) -> None:
        """Such a moment has come."""
        self.counts[MOMENTS[name]] += 1
        if self._awaited[name] and not self.is_healed:
            self.ensemble.strikes = True
            self._awaited[name].popleft()(Moment(BrokerId(broker), tp))

    def controller(self) -> BrokerId:
        """The broker that thinks it is the controller, the first one when there is none."""
        return next((b.id for b in self.brokers.values() if b.process.alive and b.controlling.is_active), self.ids[0])

    def leader(self, tp: TopicPartition) -> BrokerId:
        """As ZooKeeper says; the first broker while there is none."""
        leader = self.checker.partitions[tp].state.leader
        return BrokerId(leader) if leader >= 0 else self.ids[0]

    def follower(self, tp: TopicPartition) -> BrokerId:
        """The last in-sync replica that does not lead, or else the last broker that does not."""
        state = self.checker.partitions[tp].state
        return next(b for b in map(BrokerId, (*reversed(state.isr), *reversed(self.ids))) if b != state.leader)

    # --- what happens to brokers

    def is_up(self, broker: BrokerId) -> bool:
        return broker in self.brokers and self.brokers[broker].process.alive

    def start_broker(self, broker: BrokerId) -> None:
        if self.is_up(broker) or self.is_lost(broker):
            return
        self._lives += 1
        self.brokers[broker] = new = self._make_broker(self, broker, self._lives)
        self.network.servers[broker] = new
        self.engine.note(f"broker {broker} starts as {new.process.name}")
        new.start()

    def start_again(self, broker: BrokerId, after_ms: int) -> None:
        self.at(self.engine.now + after_ms, partial(self.start_broker, broker))

    def kill(self, broker: BrokerId) -> None:
        """kill -9 of the process: the page cache stays."""
        if self.is_up(broker):
            self.engine.note(f"broker {broker}: kill -9")
            self.brokers[broker].crash()
            self._hint(broker)

    def crash_machine(self, broker: BrokerId) -> None:
        """The machine dies: what was not synced is gone, and nobody is told. Where each append is flushed that harms
        nothing that counts.
        """
        if self.checker.damaged if self.flushes else not self.checker.may_damage(broker):
            return  # with flush.messages=1: who was not intact was left out of the ISR, though it lost nothing
        self.crashed[broker] = self.checker.broker_epochs.get(broker, 0)
        self.counts["unsynced data is lost"] += 1
        self.engine.note(f"broker {broker}: its machine crashes, unsynced data is lost")
        if self.is_up(broker):
            self.brokers[broker].crash()
        self.network.servers.pop(broker, None)
        if not self.flushes:
            self._damage(broker)
        self.disks[broker].crash_machine()

    def wipe(self, broker: BrokerId) -> None:
        """The machine dies and comes back with an empty disk."""
        if not self.checker.may_damage(broker) or (self.flushes and self.crashed):
            return
        self.engine.note(f"broker {broker}: its disk is wiped")
        if self.is_up(broker):
            self.brokers[broker].crash()
        self.network.servers.pop(broker, None)
        self._damage(broker)
        self._lives += 1
        self.disks[broker].wipe(UUID(int=1_000 + self._lives))

    def fail_disk(self, broker: BrokerId) -> None:
        """Its log directory goes offline: until the process is replaced, nothing is read or written there."""
        if self.is_up(broker):
            self.engine.note(f"broker {broker}: its disk fails")
            self.disks[broker].health.fail(OSError(EIO, "I/O error"), "a write")
            process = self.brokers[broker]
            self.engine.at(0, process.serving, process.replicas.give_up_failed)

    def replace_disk(self, broker: BrokerId) -> None:
        """Its process starts anew, and what was written is there."""
        if self.is_up(broker) and self.disks[broker].health.failure:
            self.kill(broker)
            self.start_broker(broker)

    def fill_disk(self, broker: BrokerId) -> None:
        """Its data dir has no room left, just when its session ends and the next one is to be kept there."""
        self.disks[broker].is_full = True
        self.expire(broker)

    def free_disk(self, broker: BrokerId) -> None:
        self.disks[broker].is_full = False

    def _damage(self, broker: BrokerId) -> None:
        checker = self.checker
        checker.damaged[broker] = max(checker.damaged.get(broker, -1), checker.broker_epochs.get(broker, 0))

    def stop(self, broker: BrokerId, back_ms: int) -> None:
        """An orderly stop: drained if the controller answers, then flushed; back after ``back_ms``."""
        if not self.is_up(broker):
            return
        process = self.brokers[broker]

        def stop(answer: bytes | None) -> None:
            if process.is_busy:
                self.engine.at(1, process.serving, partial(stop, answer))
            elif process.process.alive:
                self.engine.note(f"broker {broker}: clean stop")
                process.stop_clean()
                self._hint(broker)
                self.start_again(broker, 0 if self.is_healed else back_ms)

        self.engine.note(f"broker {broker}: drains")
        process.drain(stop)

    def pause(self, broker: BrokerId, until: int) -> None:
        """SIGSTOP; SIGCONT comes at ``until``."""
        if self.is_up(broker):
            process, store = self.brokers[broker].process, self.brokers[broker].store
            self.engine.note(f"broker {broker}: paused until {until} ms")
            process.paused_until = max(process.paused_until, until)
            self.engine.at(until - self.engine.now, self._admin, store.look_again)

    def fail_steps(self, broker: BrokerId, count: int) -> None:
        """So many of the next steps fail there that a message of the controller asks for."""
        if self.is_up(broker):
            self.brokers[broker].replicas.fails = count

    def fail_threads(self, broker: BrokerId, count: int) -> None:
        """So many of the next steps, and calls to ZooKeeper, of the threads fail that a broker always needs."""
        if self.is_up(broker):
            self.brokers[broker].fail_threads(count)

    def drain(self, broker: BrokerId) -> None:
        """It is to lead nothing any more, and stays."""
        if self.is_up(broker):
            self.engine.note(f"broker {broker}: is drained")
            self.brokers[broker].set_drained(is_drained=True)

    def undrain(self, broker: BrokerId) -> None:
        if self.is_up(broker):
            self.brokers[broker].set_drained(is_drained=False)

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
            self.checker.ended(broker)
            try:
                self.ensemble.expire(store.session.id)
            finally:
                self.ensemble.tell()

    def cut_off(self, broker: BrokerId, length: int, *, is_mute: bool) -> Callable[[], None]:
        """The controller alone does not reach the broker, which reaches it unless ``is_mute``; how that ends. One
        broker stays so until others have taken over: where that is to last longer than faults do.
        """
        self.engine.note(f"broker {broker}: cut off from the controller{', both ways' if is_mute else ''}")
        self.traffic.deaf.add(broker)
        if is_mute:
            self.traffic.mute.add(broker)
        if length >= STAYS_MS and self.away is None:
            self.away = Away(broker, is_dead=False)
        return partial(self.reconnect, broker)

    def reconnect(self, broker: BrokerId) -> None:
        """The controller reaches it again."""
        if self.away is None or self.away.broker != broker or self.away.is_dead:
            self.traffic.deaf.discard(broker)
            self.traffic.mute.discard(broker)

    def lose(self, broker: BrokerId) -> None:
        """It is killed, and comes back only when others have taken over."""
        if self.away is None:
            self.away = Away(broker, is_dead=True)
        self.kill(broker)

    def is_lost(self, broker: BrokerId) -> bool:
        """Whether it is dead until others have taken over."""
        return self.away is not None and self.away.is_dead and self.away.broker == broker

    def return_away(self) -> None:
        """Others have taken over: the one that was away is back."""
        if self.away is not None:
            broker, self.away = self.away.broker, None
            self.reconnect(broker)
            self.start_broker(broker)

    # --- what happens to the network

    def storm(self, rate: float) -> None:
        traffic = self.traffic
        traffic.lost, traffic.doubled, traffic.slow = rate / 2, rate, rate
        self.engine.note(f"network: rate {rate}")

    def zookeeper_storm(self, rate: float) -> None:
        self.weather.lost = self.weather.answer_lost = rate / 2
        self.engine.note(f"zookeeper: rate {rate}")

    def zookeeper_slows(self) -> None:
        if not self.is_healed:
            self.weather.slow += 1

    def zookeeper_recovers(self) -> None:
        self.weather.slow = max(0, self.weather.slow - 1)

    # --- what people ask for

    def reassign(self, replicas: tuple[BrokerId, ...] | None) -> None:
        """All partitions; None: cancel what is under way."""
        self.engine.note(f"reassignment to {replicas}" if replicas else "reassignments are cancelled")
        changes = tuple(NewReplicas(tp, replicas) for tp in self.tps)
        self._ask(lambda token, deadline: ReassignmentRequested(token, changes, deadline))

    def elect(self) -> None:
        """Preferred replicas are to lead."""
        self.engine.note("preferred leaders are asked for")
        self._ask(lambda token, deadline: ElectionRequested(token, tuple(self.tps), deadline))

    def grow(self) -> None:
        """One more partition."""
        if len(self.tps) < MAX_PARTITIONS:
            self.engine.note("one more partition is asked for")
            wanted = NewPartitions(TOPIC, len(self.tps) + 1)
            self._ask(lambda token, deadline: PartitionsCreateRequested(token, (wanted,), deadline))

    def delete_topic(self) -> None:
        """Once it is gone, it is made anew under its name."""
        self.engine.note("the topic is to be deleted")
        self._ask(lambda token, deadline: TopicDeleteRequested(token, (TOPIC,), deadline))

    def set_config(self) -> None:
        """An override of the topic is set, as ``configs.alter_topic_configs`` does it."""
        self._configs += 1
        value = paths.encode_config({"retention.ms": str(10**9 + self._configs)})
        notice = Create(paths.CONFIG_CHANGE_PREFIX, paths.encode_config_change(f"topics/{TOPIC}"), sequence=True)
        try:
            self.ensemble.multi([Set(paths.topic_config(TOPIC), value, ANY_VERSION), notice], 0)
        except StoreError:  # there is no such topic at the moment
            return
        self.engine.note(f"override {self._configs} of the topic is set")

    def compare_with_store(self) -> None:
        """Somebody has mended what nobody could read, and asks the controller to look."""
        for broker in self.brokers.values():
            if broker.process.alive:
                broker.controlling.compare()

    def _ask(self, request: Callable[[object, MonotonicMs], Event]) -> None:
        """Ask every broker: one of them is the controller, as far as it knows."""
        for broker in self.brokers.values():
            if broker.process.alive:
                broker.controlling.ask(request)

    def quiet(self, until: int) -> None:
        """Nobody produces: what is deleted then may be all that there was."""
        for producer in self.producers:
            producer.quiet_until = until

    def delete_records(self, tp: TopicPartition, share: float) -> None:
        """What is committed of ``tp``, all of it or a part, as far as clients know."""
        known = self.checker.partitions[tp]
        offset = Offset(-1 if share > 0.2 else known.start + int((known.known_end - known.start) * share * 5))
        self.engine.note(f"records of {tp} before {offset} are to be deleted")

        def done(answer: tuple[Offset, TopicId] | RaylogError | None) -> None:
            if isinstance(answer, tuple):
                start, topic_id = answer
                self.engine.note(f"records of {tp} before {start} are deleted")
                self.checker.heard_deleted(tp, topic_id, start)

        request = DeleteRequest(tp, offset, 1_000)
        self.network.call(401, self._admin, self.leader(tp), "delete", request, 1_500, done)

    # --- failover by hint

    def _hint(self, dead: BrokerId) -> None:
        """Those that kept a connection to it find it refused, within milliseconds."""
        for broker in self.ids:
            if broker != dead and self.is_up(broker):
                other = self.brokers[broker]
                epoch = self.brokers[dead].epoch
                self.engine.at(2, other.serving, partial(self._refused, other, dead, epoch))

    def _refused(self, observer: Any, dead: BrokerId, epoch: Any) -> None:
        if self.network.refuses(observer.id, dead):
            self._tell_hint(observer, dead, epoch)

    def _tell_hint(self, observer: Any, dead: BrokerId, epoch: Any) -> None:
        observer.controlling.seems_dead(dead, epoch)

    def wrong_hint(self, broker: BrokerId) -> None:
        """All signs say that it is dead, and it is not."""
        if not self.is_up(broker):
            return
        self.engine.note(f"broker {broker}: a wrong hint says that it is dead")
        epoch = self.brokers[broker].epoch
        for other in self.brokers.values():
            if other.id != broker and other.process.alive:
                self.engine.at(0, other.serving, partial(self._tell_hint, other, broker, epoch))

    # --- the end

    def heal(self) -> None:
        """Nothing is broken any more but disks."""
        self.is_healed = True
        self.quiet(0)
        self.traffic.cuts.clear()
        self.traffic.far.clear()
        self.weather.slow = 0
        self.weather.far.clear()
        self.storm(0.0)
        self.zookeeper_storm(0.0)
        self.counts["a zookeeper server lags"] += self.ensemble.is_behind
        for broker in self.ids:
            self.cut_from_zookeeper.discard(broker)
            self.free_disk(broker)
            self.reconnect(broker)
            self.start_broker(broker)
            self.brokers[broker].store.mend()
            self.undrain(broker)
            self.fail_steps(broker, 0)
            self.fail_threads(broker, 0)
        if self.groups is not None:
            self.groups.heal()

    def unmoved(self) -> str:
        """What counts on a disk that has failed, while there is another member that is sound; empty when nothing."""
        failed = [broker for broker in self.ids if self.disks[broker].health.failure]
        for tp in self.tps if failed else ():
            state = self.checker.partitions[tp].state
            can_lead = [
                broker
                for broker in self.checker.sound(tp)
                if broker not in failed and state.incarnations.get(broker, -1) > self.crashed.get(broker, -1)
            ]
            if can_lead and (state.leader not in can_lead or any(broker in failed for broker in state.isr)):
                return f"{tp} counts on a failed disk, one of {failed}: {state}"
        return ""

    def unhealed(self) -> str:
        """What is still not well; empty when every partition has a leader and a full ISR."""
        for tp in self.tps:
            partition = self.checker.partitions[tp]
            state = partition.state
            if state.leader < 0 or len(state.isr) < REPLICAS or not self.brokers[BrokerId(state.leader)].process.alive:
                return f"{tp} is not well: {state}"
        return ""

    @property
    def acked(self) -> int:
        """Batches that were acknowledged."""
        return sum(producer.acked for producer in (*self.former_producers, *self.producers))

    def stop_producing(self) -> None:
        for producer in self.producers:
            producer.stopped = True

    def untold(self) -> str:
        """Which broker knows other overrides of the topic than are set; empty when none does."""
        configs = paths.decode_config(paths.topic_config(TOPIC), self.checker.configs[TOPIC])
        for broker in self.brokers.values():
            topic = broker.state.topics.get(TOPIC)
            if topic is None or topic.configs != configs:
                return f"broker {broker.id} knows {topic and topic.configs} of {TOPIC}, set is {configs}"
        return ""

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
                files = self.disks[BrokerId(broker)].files[tp]
                for here, there in zip(files.batches, partition.committed[files.skipped :], strict=True):
                    if here != there:
                        raise Violation(MATCHING, f"{tp} at broker {broker}: {here} is not {there}")
