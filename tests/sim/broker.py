"""A simulated broker: one life of a process, around the real cores and shells.

Here is the glue that a real broker has in ``isr_changes``, ``draining`` and the Produce, Fetch and ListOffsets
handlers, and nothing else: what is decided, is decided by ``Membership`` with its ``BrokerRegistration`` and ``Lease``,
``ControllerRuntime``, ``PartitionTable``, ``Partition`` with its ``Leadership``, and ``Following``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from errno import ENOSPC
from pathlib import Path
from typing import Any

from raylog.broker.cluster.membership import Membership
from raylog.broker.partition.partition import Partition
from raylog.broker.partition.types import ACKS_ALL, AppendInfo
from raylog.broker.storage.disk.health import Health
from raylog.coordination.control.proposals import Drain, DrainAnswer, Verdict
from raylog.coordination.membership.registration import BrokerRegistration, ensure_cluster
from raylog.coordination.metadata.model import BrokerInfo, ClusterState, Endpoint
from raylog.coordination.store.port import Session
from raylog.protocol.errors import RaylogError, RequestTimedOut, UnknownTopicOrPartition
from raylog.protocol.ids import BrokerEpoch, BrokerId, MonotonicMs, TimestampMs

from .clients import Leader, ProduceRequest
from .controlling import Controlling
from .disk import Disk
from .engine import Process, ProcessDied, Thread
from .group_coordinator import Coordinating
from .local import StepFailed
from .loops import RunningLoops
from .network import Answer
from .replicas import Replicas
from .world import World
from .zookeeper import SimStore

RETRY_MS = 200
KEEP_MS = 300
DRAIN_TIMEOUT_MS = 1_000


class DiskSession:
    """Stands in for registration.SessionFile."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def load(self) -> Session | None:
        return self._disk.session

    def save(self, session: Session) -> None:
        if self._disk.is_full:
            raise OSError(ENOSPC, "No space left on device")
        self._disk.session = session

    def clear(self) -> None:
        self._disk.session = None


@dataclass
class Waiting:
    """A produce that waits for its commit."""

    partition: Partition
    info: AppendInfo
    answer: Answer
    deadline: int


class SimBroker:
    """See the module."""

    def __init__(self, world: World, broker_id: BrokerId, life: int) -> None:
        self.id = broker_id
        self.world = world
        self.engine = world.engine
        self.network = world.network
        self.disk = world.disks[broker_id]
        self.process = Process(f"broker {broker_id}.{life}")
        self.serving = Thread(self.process)
        self._membership = Thread(self.process)
        self._offset = broker_id * 100_000
        design = world.design
        self.store = SimStore(world.ensemble, world.weather, self._membership, self.clock, broker_id)
        self.store.is_cut = broker_id in world.cut_from_zookeeper
        lost = any(files.end < files.high_watermark for files in self.disk.files.values())
        registration: BrokerRegistration = design.registration(
            self.store,
            DiskSession(self.disk),
            boot_id=f"{broker_id}/{self.disk.boot}",
            lost_data=lost,
            wall_ms=lambda: TimestampMs(0),
        )
        self._info = BrokerInfo(
            broker_id,
            BrokerEpoch(-1),
            (Endpoint("PLAINTEXT", f"h{broker_id}", 9092),),
            directory_ids=(self.disk.directory,),
            clean_stop=self.disk.clean,
        )
        self.disk.clean = False
        self.disk.health = Health(Path(f"broker {broker_id}"))
        self._is_drained = self._was_drained = False
        self._told: tuple[int, int] | None = None
        """The controller's epoch and our incarnation of the last one that knows whether it is drained."""
        self._loops = self._make_loops(self._membership)
        self.membership = Membership(
            self.store,
            registration,
            self,  # type: ignore[arg-type]
            self._loops,
            lease=design.lease(),
            now_ms=self.clock,
        )
        self.replicas = Replicas(self)
        self._waiting: list[Waiting] = []
        self._controller = Thread(self.process)
        self.controlling = Controlling(
            self,
            self._controller,
            self.store,
            self._make_loops(self._controller),
            lambda: design.controller(world.min_isr),
            design.reading,
        )
        self.controlling.on_silent = lambda broker: world.moment("silent", broker)
        self.coordinating = Coordinating(self, design.groups) if world.has_groups else None

    def _make_loops(self, thread: Thread) -> RunningLoops:
        """What runs on a thread of the engine."""
        world, failed = self.world, ("steps of brokers' threads failed",)
        return world.design.loops(self.store, world.ensemble, thread, lambda: world.counts.update(failed))

    def clock(self) -> MonotonicMs:
        """This machine's monotonic clock, which shows what it likes."""
        return MonotonicMs(self.engine.now + self._offset)

    def told(self) -> ClusterState:
        return self.replicas.table.state()

    # --- membership

    @property
    def state(self) -> ClusterState:
        """The newest that the controller sent."""
        return self.replicas.table.state()

    @property
    def is_synced(self) -> bool:
        """As PartitionTable."""
        return self.replicas.table.is_synced

    @property
    def epoch(self) -> BrokerEpoch:
        """Of the incarnation."""
        return self.membership.epoch

    def start(self) -> None:
        self.engine.at(1, self._membership, self._start)

    def _start(self) -> None:
        """Where that fails, all of it is done again, by a new process."""
        self.store.thread = self._membership
        try:
            self.store.start()
            if self.store.is_cut:
                self.store.suspend()
            ensure_cluster(self.store, "sim")
            self.membership.start(self._info)
        except (RaylogError, OSError, StepFailed) as error:
            self.engine.note(f"{self.process.name}: cannot join, {error}")
            self.world.start_again(self.id, RETRY_MS)
            self.crash()
            return
        self.controlling.start()
        self.replicas.start()
        self.engine.at(KEEP_MS, self.serving, self._keep_drained_on)

    def register_with(self, register: Callable[[], BrokerEpoch]) -> None:
        """As PartitionTable: no message of the controller is taken in meanwhile."""
        self.serving.busy = True
        try:
            self.replicas.table.register_with(register)
        finally:
            self.serving.busy = False
            waiting, self.serving.waiting = self.serving.waiting, []
            for action in waiting:
                self.engine.at(0, self.serving, action)
        since = self.membership.broker.intact_since
        self.engine.note(f"{self.process.name}: registered, epoch {self.epoch}, intact since {since}")

    @property
    def may_act(self) -> bool:
        return self.membership.lease_held

    def check_lease(self) -> None:
        """Raises NotLeaderOrFollower."""
        self.membership.check()

    def fail_threads(self, count: int) -> None:
        """So many of the next steps of each of its threads fail, of the calls to ZooKeeper in later ones, and of the
        threads that the controller makes.
        """
        self._loops.fail(count)
        self.controlling.fail_threads(count)
        self.store.odd_calls = {self._membership: count, self._controller: count}

    @property
    def is_busy(self) -> bool:
        """A thread is in the midst of a step: to stop, the broker waits for it."""
        return (
            self._membership.busy
            or self._controller.busy
            or (self.coordinating is not None and self.coordinating.is_busy)
        )

    # --- the end of it

    def crash(self) -> None:
        """kill -9: nothing more is asked or told."""
        self.process.alive = False
        self.store.abandon()

    def drain(self, then: Callable[[bytes | None], None], *, cancel: bool = False) -> None:
        """Ask the controller to let others lead (or no longer), and go on with its answer, or without one."""
        state, serving = self.state, self.serving
        message = Drain(self.id, self.epoch, state.controller_epoch, cancel).encode()
        self.network.call(self.id, serving, state.controller_id, "propose", message, DRAIN_TIMEOUT_MS, then)

    def set_drained(self, *, is_drained: bool) -> None:
        """It is to lead nothing any more though it stays, or is to take part again."""
        if self._is_drained is not is_drained:
            self._is_drained, self._told = is_drained, None
        self._keep_drained()

    def _keep_drained_on(self) -> None:
        self.engine.at(KEEP_MS, self.serving, self._keep_drained_on)
        self._keep_drained()

    def _keep_drained(self) -> None:
        """As Draining.keep: tell a controller that has not heard of it."""
        about = (self.state.controller_epoch, self.epoch)
        if self._told == about or (self._told is None and not self._is_drained and not self._was_drained):
            return
        self._was_drained = True

        def done(answer: bytes | None) -> None:
            if (
                answer is not None
                and DrainAnswer.decode(answer).verdict is Verdict.OK
                and is_drained is self._is_drained
            ):
                self._told = about

        is_drained = self._is_drained
        self.drain(done, cancel=not is_drained)

    def stop_clean(self) -> None:
        """Flush, sign off, end; a disk that failed is left as it is, without the mark of an orderly stop."""
        self.store.thread = self._controller
        self.controlling.stop()
        self.serving.busy = True  # the server is stopped, and with it all that comes from other brokers
        self.membership.leave()
        self.replicas.resign_all()
        if self.coordinating is not None:
            self.coordinating.stop()
        if not self.disk.health.failure:
            for replica in self.replicas.partitions.values():
                replica.log.flush()
                replica.save_start()
                replica.log.save_producers()
            self.disk.clean = True
        self.store.thread = self._membership
        self.membership.stop()
        self.store.close()
        self.process.alive = False

    # --- what others ask

    def serve(self, kind: str, request: Any, answer: Answer) -> None:
        match kind:
            case "control":
                self._control(request, answer)
            case "propose":
                self.controlling.propose(request, answer)
            case "metadata":
                state = self.state
                told = {
                    tp: Leader(p.leader, p.leader_epoch, topic.id)
                    for topic in state.topics.values()
                    for tp, p in topic.topic_partitions()
                }
                answer(told)
            case "create":
                new, topic_id = request
                self.controlling.create(new, topic_id, answer)
            case "produce":
                self._produce(request, answer)
            case "consume":
                self.replicas.consume(request, answer)
            case "replicate":
                self.replicas.replicate(request, answer)
            case "delete":
                self.replicas.delete_records(request, answer)
            case "group" if self.coordinating is not None:
                self.coordinating.serve(request, answer)
            case "ends":
                self._answering(answer, lambda: self.replicas.ends(request))

    def _answering(self, answer: Answer, work: Callable[[], Any]) -> None:
        """Work under the lease, which must still be held when it is done."""
        try:
            self.check_lease()
            result = work()
            self.check_lease()
        except ProcessDied:
            raise
        except RaylogError as error:
            answer(error)
        else:
            answer(result)

    def _control(self, payload: bytes, answer: Answer) -> None:
        try:
            answered = self.replicas.control(payload)
        except StepFailed as error:
            self.engine.note(f"broker {self.id}: a message of the controller failed, {error}")
            return  # the controller hears nothing
        self.settle()
        answer(answered)

    def _produce(self, request: ProduceRequest, answer: Answer) -> None:
        try:
            self.check_lease()
            batch = memoryview(bytearray(request.batch))
            partition = self.replicas.table.get(request.tp, request.topic_id)
            info = partition.append(batch, acks=ACKS_ALL, now_ms=TimestampMs(0))
        except RaylogError as error:
            answer(error)
            return
        self._waiting.append(Waiting(partition, info, answer, self.engine.now + request.timeout_ms))
        self.engine.at(request.timeout_ms, self.serving, self.settle)
        self.settle()

    def settle(self) -> None:
        """Answer the produces whose wait is over: something may have changed."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not self._settled(each):
                self._waiting.append(each)

    def _settled(self, waiting: Waiting) -> bool:
        partition, info = waiting.partition, waiting.info
        tp = partition.tp
        try:
            if self.replicas.partitions.get(tp) is not partition:
                raise UnknownTopicOrPartition(f"{tp} is gone")
            if not partition.role.check_committed(info):
                if self.engine.now < waiting.deadline:
                    return False
                raise RequestTimedOut(f"{tp}: not committed in time")
            self.check_lease()
        except RaylogError as error:
            waiting.answer(error)
            return True
        self.world.checker.acks(tp, partition.topic_id, self.id, info.last_offset)
        if self.engine.lines is not None:
            self.engine.note(f"broker {self.id}: acks {tp} at {info.base_offset}, epoch {partition.role.leader_epoch}")
        waiting.answer(info.failure(tp) or info.base_offset)
        return True
