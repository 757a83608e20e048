"""The consumer groups of a simulated cluster: one of actors, one of Kafka clients; and what befalls their members."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from raylog.broker.groups.classic.claims import decode_group
from raylog.broker.groups.coordinator import GroupCoordinator
from raylog.coordination.groups.group import Member
from raylog.coordination.groups.registry import GroupRegistry
from raylog.coordination.membership.lease import Lease
from raylog.coordination.metadata import group_paths, paths
from raylog.coordination.store.port import Create, Delete, Set
from raylog.protocol.ids import BrokerId, GroupId, InstanceId, MemberId, Offset, PartitionIndex, TopicId, TopicPartition

from .engine import Process, Thread
from .group_clients import SimClient
from .group_coordinator import DeleteGroup, GroupRequest, coordinator, settled
from .group_invariants import ACTORS, CLIENTS, LEFT, PARTITIONS, TOPIC, GroupChecker, topic_id
from .group_members import SimMember, SimThread
from .loops import RunningLoops, SimLoops

if TYPE_CHECKING:
    from .world import World

MEMBERS = CLIENT_COUNT = 3
MOST_PARTITIONS = 8
NOWHERE = BrokerId(99)
"""The replica of the topic that groups read."""
MOST = 5
FIRST_MEMBER, FIRST_CLIENT, FIRST_LEFT = 1_000, 2_000, 3_000
"""Where members and clients are in the network."""
ADMIN = 402
DELETIONS, SLOW_MS = 3, 300
EMPTIES_MS, LOOK_MS = 2_000, 20
MADE_PROGRESS = 3
"""So many commits of each partition must come after everything is healed."""


@dataclass(frozen=True)
class GroupDesign:
    """The cores of groups."""

    member: Callable[..., Member] = Member
    member_lease: Callable[[], Lease] = Lease
    registry: Callable[..., GroupRegistry] = GroupRegistry
    member_thread: Callable[..., SimThread] = SimThread
    member_loops: Callable[..., RunningLoops] = RunningLoops
    coordinator: Callable[..., GroupCoordinator] = GroupCoordinator
    loops: Callable[..., SimLoops] = SimLoops


class SimGroups:
    """See the module."""

    def __init__(self, world: World, design: GroupDesign) -> None:
        self.world = world
        self.engine = world.engine
        self.design = design
        self._excused: set[MemberId] = set()
        """Whose session was ended by ZooKeeper, unheard so far."""
        self.checker = GroupChecker(world.engine, world.ensemble, settled, coordinator)
        self.checker.on_moment = self._moment
        self.checker.excused = self._excused.__contains__
        self.members: list[SimMember] = []
        self.clients: list[SimClient] = []
        self._admin = Thread(Process("groups"))
        self._nodes = {"member": FIRST_MEMBER, "client": FIRST_CLIENT}
        self._committed_at_heal: dict[tuple[str, TopicPartition], int] = {}
        self.partitions = [*PARTITIONS]
        """What actors share; clients share those that there were at first."""
        for path in ("/brokers", paths.BROKER_TOPICS, "/raylog", paths.TOPIC_IDS):
            world.ensemble.multi([Create(path)], 0)
        self._make_topic()
        for _ in range(MEMBERS):
            self.start_member()
        for _ in range(CLIENT_COUNT):
            self.start_client()
        self.left = [SimClient(self, FIRST_LEFT + number, None, LEFT) for number in range(2)]
        for client in self.left:
            client.start()

    def _topic(self) -> bytes:
        replicas = tuple((NOWHERE,) for _ in self.partitions)
        return paths.encode_topic(paths.TopicAssignment(self.topic_id, replicas))

    @property
    def topic_id(self) -> TopicId:
        return topic_id(self.checker.life)

    def _make_topic(self) -> None:
        nodes = (paths.topic_id(self.topic_id), paths.topic(TOPIC))
        self.world.ensemble.multi([Create(nodes[0]), Create(nodes[1], self._topic())], 0)

    def recreate(self, after_ms: int) -> None:
        """The topic is deleted as a controller does it, and made anew: not while another one reads what there is."""
        if not self.checker.is_there or self.world.is_healed:
            return
        if self._is_read():
            self.engine.at(LOOK_MS, self._admin, partial(self.recreate, after_ms))
            return
        self.engine.note(f"{TOPIC} is deleted")
        for node in (paths.topic_id(self.topic_id), paths.topic(TOPIC)):
            self.world.ensemble.multi([Delete(node)], 0)
        self.checker.gone()
        self.partitions = [*PARTITIONS]
        self.engine.at(after_ms, self._admin, self._made_anew)

    def _is_read(self) -> bool:
        return any(broker.controlling.is_busy for broker in self.world.brokers.values() if broker.process.alive)

    def _made_anew(self) -> None:
        if self._is_read():
            self.engine.at(LOOK_MS, self._admin, self._made_anew)
            return
        self.engine.note(f"{TOPIC} is made anew")
        self.checker.made_anew()
        if self.world.is_healed:  # what was healed meanwhile begins anew
            self._committed_at_heal = dict(self.checker.committed)
        self._make_topic()
        for client in self.clients:
            client.sees_topic(self.checker.life)

    def grow(self) -> None:
        """The topic gets one more partition."""
        if self.checker.is_there and len(self.partitions) < MOST_PARTITIONS:
            self.partitions.append(TopicPartition(TOPIC, PartitionIndex(len(self.partitions))))
            self.engine.note(f"{TOPIC} has {len(self.partitions)} partitions")
            self.world.ensemble.multi([Set(paths.topic(TOPIC), self._topic())], 0)

    # --- who takes part

    def start_member(self, instance: InstanceId | None = None) -> None:
        """One more actor, under an id that nobody had before; ids come in no order. Every fourth one is static."""
        if sum(member.process.alive for member in self.members) >= MOST:
            return
        self._nodes["member"] += 1
        node = self._nodes["member"]
        name = MemberId(f"{self.engine.random.randrange(1_000):03}-{node}")
        if instance is None and node % 4 == 0:
            instance = InstanceId(f"i{node}")
        self.members.append(SimMember(self, node, name, instance))
        self.members[-1].start()

    def start_client(self, instance: InstanceId | None = None) -> None:
        """One more client; every second one is static (KIP-345)."""
        if sum(client.process.alive for client in self.clients) >= MOST:
            return
        self._nodes["client"] += 1
        node = self._nodes["client"]
        if instance is None and node % 2:
            instance = InstanceId(f"i{node}")
        self.clients.append(SimClient(self, node, instance))
        self.clients[-1].start()

    def coordinator(self) -> BrokerId:
        """Of the group of clients, as ZooKeeper has it; some broker while there is none."""
        broker = self.checker.coordinator
        return broker if broker in self.world.ids else self.world.ids[0]

    def member(self, place: int) -> SimMember | None:
        """The one that is so many'th of those that live, or that is at this node of the network."""
        living = [member for member in self.members if member.process.alive and not member.is_leaving]
        if place >= FIRST_MEMBER:
            return next((member for member in living if member.node == place), None)
        return living[place % len(living)] if living else None

    def client(self, place: int) -> SimClient | None:
        living = [client for client in self.clients if client.process.alive and not client.is_leaving]
        return living[place % len(living)] if living else None

    # --- what happens to them

    def kill_member(self, member: SimMember) -> None:
        """kill -9. Most others hear of it at once: a connection to it is refused."""
        self.engine.note(f"{member.process.name}: kill -9")
        member.crash()
        self._tell_others_of_death(member)

    def hint(self, member: SimMember) -> None:
        """All signs say that it is dead, and it is not."""
        self.engine.note(f"{member.process.name}: a wrong hint says that it is dead")
        self._tell_others_of_death(member)

    def _tell_others_of_death(self, member: SimMember) -> None:
        """Nobody watches the process of a static one."""
        if member.instance is not None:
            return
        for other in self.members:
            if other is not member and other.process.alive and not self.engine.chance(0.3):
                other.heard_of_death(member.name)

    def expire(self, member: SimMember) -> None:
        """ZooKeeper ends the session for no reason that the member knows."""
        if not member.store.is_started:
            return
        self.engine.note(f"{member.process.name}: zookeeper ends its session")
        self._excused.add(member.name)
        self.world.ensemble.expire(member.store.session.id)
        self.world.ensemble.tell()

    def pause(self, who: SimMember | SimClient, until: int) -> None:
        """SIGSTOP; SIGCONT comes at ``until``."""
        self.engine.note(f"{who.process.name}: paused until {until} ms")
        who.process.paused_until = max(who.process.paused_until, until)
        if isinstance(who, SimMember):
            self.engine.at(until - self.engine.now, self._admin, who.store.look_again)

    def replace(self, who: SimMember | SimClient, after_ms: int) -> None:
        """Another takes its place: of a static one under its instance id."""
        start = self.start_member if isinstance(who, SimMember) else self.start_client
        self.engine.at(after_ms, self._admin, partial(start, who.instance))

    def abandon(self) -> BrokerId | None:
        """All clients of LEFT are killed for good, and their coordinator, which is answered."""
        if not self.left[0].process.alive:
            return None
        self.engine.note(f"group {LEFT} is abandoned")
        for client in self.left:
            client.crash()
        found = self.world.ensemble.get(group_paths.claim(LEFT))
        broker = BrokerId(coordinator(found.data)) if found is not None else self.world.ids[0]
        self.world.kill(broker)
        return broker

    def fail_steps(self, count: int) -> None:
        """So many of the next steps fail of the threads with which the coordinator of clients looks after groups."""
        broker = self.world.brokers[self.coordinator()]
        if broker.process.alive and broker.coordinating is not None:
            broker.coordinating.fail_steps(count)

    def delete(self, group: GroupId, after_ms: int) -> None:
        """All members leave; once the group is empty it is deleted, while others join and calls take long."""
        self.engine.note(f"group {group} is to be deleted")
        members: Sequence[SimMember | SimClient] = self.members if group == ACTORS else self.clients
        leaving = [member for member in members if member.process.alive and not member.is_leaving]
        for member in leaving:
            member.leave()
        self.engine.at(after_ms, self._admin, partial(self._delete_empty, group, len(leaving), EMPTIES_MS))

    def _delete_empty(self, group: GroupId, joining: int, left_ms: int) -> None:
        random, start = self.engine.random, self.start_member if group == ACTORS else self.start_client
        if self._living(self.members if group == ACTORS else self.clients) and left_ms > 0:
            self.engine.at(LOOK_MS, self._admin, partial(self._delete_empty, group, joining, left_ms - LOOK_MS))
            return
        if group == ACTORS:
            self._end_sessions_of_static()
        self.world.zookeeper_slows()
        self.engine.at(SLOW_MS, self._admin, self.world.zookeeper_recovers)
        for _ in range(joining):
            self.engine.at(random.randrange(20, 200), self._admin, start)
        for _ in range(DELETIONS):
            self.engine.at(random.randrange(20), self._admin, partial(self._delete, group))

    def _end_sessions_of_static(self) -> None:
        """Those that have closed would be waited for."""
        for member in self.members:
            if member.instance is not None and not member.process.alive and member.store.is_started:
                self.world.ensemble.expire(member.store.session.id)
        self.world.ensemble.tell()

    def _delete(self, group: GroupId) -> None:
        for broker in self.world.ids:
            request = GroupRequest(group, DeleteGroup())
            self.world.network.call(ADMIN, self._admin, broker, "group", request, 1_000, lambda answer: None)

    def hears(self, name: MemberId) -> None:
        """A member has heard that its session ended."""
        self._excused.discard(name)

    def _moment(self, name: str, session: int, broker: int) -> None:
        """Something came that faults may wait for: about a broker, or about the member in that session."""
        who = next((m.node for m in self.members if m.store.is_started and m.store.session.id == session), broker)
        self.world.moment(name, who)

    # --- what they do

    def works(self, member: SimMember, tp: TopicPartition, position: Offset) -> None:
        at_work = [other.name for other in self.members if other.process.alive and other.may_deliver(tp)]
        self.checker.works(ACTORS, tp, position, at_work)

    # --- the end

    def heal(self) -> None:
        """Nothing breaks any more, and somebody is there."""
        self._committed_at_heal = dict(self.checker.committed)
        for member in self.members:
            if member.process.alive:
                member.store.mend()
        for count, kind, start in (
            (len(self._living(self.members)), MEMBERS, self.start_member),
            (len(self._living(self.clients)), CLIENT_COUNT, self.start_client),
        ):
            for _ in range(kind - count):
                start()

    @staticmethod
    def _living(members: Sequence[SimMember] | Sequence[SimClient]) -> list[SimMember | SimClient]:
        return [member for member in members if member.process.alive]

    def abandoned(self) -> str:
        """Whether LEFT has members still that are gone; empty when it has none, or these are there."""
        found = self.world.ensemble.get(group_paths.state(LEFT))
        if found is None or self.left[0].process.alive:
            return ""
        group = decode_group(group_paths.state(LEFT), found.data)
        return f"group {LEFT} has {len(group.members)} members that are gone" if group.members else ""

    def unserved(self) -> str:
        """What no coordinator does for groups of clients; empty when one does all."""
        return self.abandoned() or self._unsettled(CLIENTS, self._living(self.clients))

    def unsettled(self) -> str:
        """What is still not well; empty when all is shared out evenly, and worked on."""
        return self._unsettled(ACTORS, self._living(self.members)) or self.unserved()

    def _unsettled(self, group: GroupId, members: Sequence[SimMember | SimClient]) -> str:
        if waiting := [member.process.name for member in members if member.is_leaving or not member.is_settled]:
            return f"group {group}: {', '.join(waiting)} not settled"
        owned = sorted(tp for member in members for tp in member.positions)
        partitions = self.partitions if group == ACTORS else [*PARTITIONS]
        if members and owned != partitions:
            return f"group {group}: {owned} are owned"
        loads = [len(member.positions) for member in members]
        if loads and max(loads) > min(loads) + 1:
            return f"group {group}: uneven shares {loads}"
        for tp in partitions if members else ():
            before = self._committed_at_heal.get((group, tp), 0)
            if self.checker.committed[group, tp] < before + MADE_PROGRESS:
                return f"group {group}: {tp} stays at {before}"
        return ""
