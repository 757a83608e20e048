"""What must hold of consumer groups, told by somebody who sees all members and all of ZooKeeper.

Each commit carries, as its metadata, who made it and in which generation. So what the store holds tells whether a
commit was stale, and whether it passed over what nobody had worked on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_model import CommittedOffset, Shares
from raylog.coordination.store.port import Create, Delete, Op, Set
from raylog.protocol.ids import (
    NO_GENERATION,
    NO_LEADER,
    NO_OFFSET,
    BrokerId,
    GroupId,
    InstanceId,
    MemberId,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)

from .engine import Engine, Violation
from .zookeeper import SESSION_TIMEOUT_MS, Ensemble

ONE_OWNER = "one owner"
STALE_COMMIT = "stale commits are refused"
NOTHING_SKIPPED = "no commit passes over what nobody worked on"
ONE_ASSIGNMENT = "one assignment per generation"
ONE_COORDINATOR = "one coordinator"
STORED_FIRST = "members are told what is stored"
KEPT = "a group that has members keeps its offsets"
ABANDONED = "an abandoned group becomes Empty"
ONE_INSTANCE = "one member of an instance"
SAME_SHARE = "a new process of an instance has the share of the former one, and nobody else another"
READ = "an offset that is read was the committed one meanwhile"

ACTORS = GroupId("actors")
CLIENTS = GroupId("clients")
LEFT = GroupId("left")
"""Of clients, too: these go and do not come back."""
TOPIC = TopicName("rides")
"""What both read. No broker has it: the records that members work on are numbers."""
PARTITIONS = tuple(TopicPartition(TOPIC, PartitionIndex(index)) for index in range(6))
"""As there are at first."""


_CLIENTS_DETAILS = group_paths.details(CLIENTS) + "/"
_DETAILS = (group_paths.details(ACTORS) + "/", _CLIENTS_DETAILS)
_OWNERS = group_paths.owners(ACTORS) + "/"
_MEMBERS = group_paths.members(ACTORS)
_ASSIGNMENT = group_paths.assignment(ACTORS)
_CLAIM, _STATE = group_paths.claim(CLIENTS), group_paths.state(CLIENTS)
_REGISTRATIONS = _MEMBERS + "/"


def _partition_of(path: str) -> tuple[GroupId, TopicPartition]:
    """Whose node it is, of those with what is committed."""
    _, topic, index = path.rsplit("/", 2)
    group = CLIENTS if path.startswith(_CLIENTS_DETAILS) else ACTORS
    return group, TopicPartition(TopicName(topic), PartitionIndex(int(index)))


def topic_id(life: int) -> TopicId:
    """Of the topic after it was made anew so many times."""
    return TopicId(UUID(int=1_000 + life))


class Author(NamedTuple):
    """Who commits: what a commit's metadata says."""

    member: str
    generation: int
    life: int
    """Of the topic that it has read (see :meth:`GroupChecker.made_anew`)."""

    @classmethod
    def of(cls, metadata: str) -> Author:
        member, generation, life = metadata.split("|")
        return cls(member, int(generation), int(life))

    def __str__(self) -> str:
        return f"{self.member}|{self.generation}|{self.life}"


class Settled(NamedTuple):
    """A generation of a group of clients as its coordinator stored it."""

    generation: int
    shares: dict[MemberId, bytes]
    """What each member was assigned."""
    names: dict[MemberId, str]
    """By which name a member goes through its lives: its instance id, else its member id."""


class GroupChecker:
    """Raises Violation."""

    def __init__(
        self,
        engine: Engine,
        ensemble: Ensemble,
        decode_state: Callable[[bytes], Settled],
        decode_coordinator: Callable[[bytes], BrokerId],
    ) -> None:
        self._engine = engine
        self._ensemble = ensemble
        self._decode_state = decode_state
        self._decode_coordinator = decode_coordinator
        self.committed: dict[tuple[GroupId, TopicPartition], int] = defaultdict(int)
        self.worked: dict[tuple[GroupId, TopicPartition], int] = defaultdict(int)
        """How far somebody has come in each partition, without a gap."""
        self.handed: Counter[tuple[GroupId, TopicPartition]] = Counter()
        """How many records were handed out, those among them that were handed out before."""
        self.commits: Counter[GroupId] = Counter()
        self.life = 0
        """How often the topic was made anew."""
        self.is_there = True
        """Whether the topic exists at the moment."""
        self._lives: dict[tuple[GroupId, TopicPartition], int] = {}
        """In which life of the topic the offset was committed that the store holds."""
        self._stands: dict[tuple[GroupId, TopicPartition], list[int]] = defaultdict(lambda: [NO_OFFSET])
        """What the store held as the committed offset, one after the other; NO_OFFSET: none."""
        self._owner_sessions: dict[TopicPartition, int] = {}
        self._generations: dict[int, dict[MemberId, bytes]] = {}
        self._shares: dict[int, dict[int, str]] = defaultdict(dict)
        """Of clients: generation → partition → who has it."""
        self.settled = Settled(0, {}, {})
        self.coordinator = NO_LEADER
        """The broker that has claimed the group of clients."""
        self._coordinator_session = 0
        self._published: dict[int, bytes] = {}
        self._assigned = Shares(NO_GENERATION, {})
        """What actors should read."""
        self._instances: dict[InstanceId, MemberId] = {}
        """Which actor was registered last of each."""
        self.on_moment: Callable[[str, int, int], None] = lambda name, session, broker: None
        """Told of the steps for which faults wait: in which session, or about which broker."""
        self.excused: Callable[[MemberId], bool] = lambda member: False
        """Whether ZooKeeper ended the member's session by itself: then its lease runs on, and that is not its fault."""
        self._evicted: dict[MemberId, int] = {}
        """When others took a member for dead: so far as it lives, and has not heard of that, its lease runs on, too."""

    def owner_session(self, tp: TopicPartition) -> int | None:
        """Of the actor that owns the partition, as ZooKeeper has it."""
        session = self._owner_sessions.get(tp)
        return session if session is not None and self._ensemble.is_live(session) else None

    # --- what ZooKeeper holds

    def stored(self, ops: Sequence[Op], session: int) -> None:
        """A multi was carried out."""
        before = self._assigned
        for op in ops:
            if op.path.startswith(_OWNERS):
                self._owner(op, session)
            elif isinstance(op, (Set, Create)) and op.data:
                if op.path == _ASSIGNMENT:
                    self._publishes(op.data, session)
                elif op.path == _CLAIM:
                    self._claims(op.data, session)
                elif op.path == _STATE:
                    self._settles(op.data, session)
                elif op.path.startswith(_DETAILS):
                    self._commits(op.path, op.data, ops, session)
                elif op.path.startswith(_REGISTRATIONS):
                    self._registers(op, ops, before)
            elif isinstance(op, Delete):
                self._deletes(op.path)

    def _registers(self, made: Create | Set, ops: Sequence[Op], before: Shares) -> None:
        """An actor is registered by this operation of a multi, before which that was assigned."""
        instance = group_paths.decode_member(made.path, made.data).instance
        if instance is None:
            return
        new = group_paths.member_of(made.path.removeprefix(_REGISTRATIONS))
        former, self._instances[instance] = self._instances.get(instance, new), new
        node = group_paths.member(ACTORS, former)
        if former != new and self._ensemble.get(node) is not None:
            raise Violation(ONE_INSTANCE, f"{new} is registered beside {former}, both are {instance}")
        if any(isinstance(op, Delete) and op.path == node for op in ops):
            wanted = {new if member == former else member: share for member, share in before.members.items()}
            if self._assigned.members != wanted:
                raise Violation(SAME_SHARE, f"{new} comes for {former}: {before} became {self._assigned}")

    def _deletes(self, path: str) -> None:
        if path.startswith(_REGISTRATIONS):
            self._evicted[group_paths.member_of(path.removeprefix(_REGISTRATIONS))] = self._engine.now
        if path.startswith(_DETAILS) and path[-1].isdecimal():
            group, tp = _partition_of(path)
            has_members = self._ensemble.children(_MEMBERS) if group == ACTORS else self.settled.names
            if has_members and self.is_there and self._lives.get((group, tp)) == self.life:
                raise Violation(KEPT, f"the offset of {tp} in group {group} is deleted, and it has members")
            self._stands[group, tp].append(NO_OFFSET)
            self.committed[group, tp] = 0
        elif path == _ASSIGNMENT:
            self._published.clear()
            self._assigned = Shares(NO_GENERATION, {})
        elif path == _STATE:
            self.settled = Settled(0, {}, {})
            self._generations.clear()
            self._shares.clear()

    def _owner(self, op: Op, session: int) -> None:
        topic, _, index = op.path.removeprefix(_OWNERS).partition("/")
        if not index:
            return
        tp = TopicPartition(TopicName(topic), PartitionIndex(int(index)))
        if isinstance(op, Create):
            self._owner_sessions[tp] = session
            if self._engine.lines is not None:
                self._engine.note(f"zookeeper: {tp} is owned by {op.data.decode()}, session {session}")
            self.on_moment("claims", session, NO_LEADER)
        elif isinstance(op, Delete):
            self._owner_sessions.pop(tp, None)

    def _publishes(self, data: bytes, session: int) -> None:
        shares = group_paths.decode_assignment(ACTORS, data)
        if self._engine.lines is not None:
            told = {member: [tp.partition for tp in tps] for member, tps in shares.members.items()}
            self._engine.note(f"zookeeper: assignment {shares.generation}: {told}")
        if self._published and shares.generation <= max(self._published):
            raise Violation(ONE_ASSIGNMENT, f"generation {shares.generation} is published after {max(self._published)}")
        self._published[shares.generation] = data
        owned = [tp for tps in shares.members.values() for tp in tps]
        if len(owned) != len(set(owned)):
            raise Violation(ONE_OWNER, f"generation {shares.generation} gives one partition to two: {shares}")
        self._assigned = shares
        self.on_moment("publishes", session, NO_LEADER)

    def _claims(self, data: bytes, session: int) -> None:
        before, self.coordinator = self.coordinator, self._decode_coordinator(data)
        self._coordinator_session = session
        if self._engine.lines is not None:
            self._engine.note(f"zookeeper: clients are claimed by {self.coordinator}")
        if self.coordinator != before:
            self.on_moment("coordinates", 0, self.coordinator)

    def _settles(self, data: bytes, session: int) -> None:
        new, old = self._decode_state(data), self.settled
        self.settled = new
        if self._engine.lines is not None:
            told = {member: [*share] for member, share in new.shares.items()}
            self._engine.note(f"zookeeper: clients in generation {new.generation}: {told}")
        if session != self._coordinator_session:
            raise Violation(ONE_COORDINATOR, f"a deposed coordinator stores generation {new.generation}")
        if new.generation < old.generation:
            raise Violation(ONE_ASSIGNMENT, f"the generation went back from {old.generation} to {new.generation}")
        if not new.shares:
            return
        if new.generation != old.generation:
            self.on_moment("settles", 0, self.coordinator)
        told = self._generations.setdefault(new.generation, {})
        told |= new.shares
        owners = self._shares[new.generation]
        for member, share in new.shares.items():
            for partition in share:
                name = new.names[member]
                if owners.setdefault(partition, name) != name:
                    raise Violation(
                        ONE_OWNER,
                        f"generation {new.generation}: partition {partition} is of {owners[partition]} and of {name}",
                    )

    def _commits(self, path: str, data: bytes, ops: Sequence[Op], session: int) -> None:
        group, tp = _partition_of(path)
        number = next(
            (op.data for op in ops if isinstance(op, (Set, Create)) and op.path == group_paths.offset(group, tp)), b""
        )
        found = group_paths.decode_committed(path, number, data) if data else None
        if found is None or not found[0].metadata:
            return
        committed = found[0]
        author = Author.of(committed.metadata)
        if self._engine.lines is not None:
            self._engine.note(f"zookeeper: {group} commit {committed.offset} of {tp}, {author}")
        self._check_author(group, tp, author, session)
        self._lives[group, tp] = author.life
        self._advance(group, tp, committed, author)

    def _check_author(self, group: GroupId, tp: TopicPartition, author: Author, session: int) -> None:
        if author.life != self.life or not self.is_there:
            raise Violation(STALE_COMMIT, f"{author.member} commits {tp} of a topic that is deleted")
        if group == ACTORS:
            owner = self._owner_sessions.get(tp, session)
            if owner != session and self._ensemble.is_live(owner):
                raise Violation(STALE_COMMIT, f"{author.member} commits {tp} in session {session}, {owner} owns it")
            return
        if author.generation < self.settled.generation:
            raise Violation(
                STALE_COMMIT,
                f"{author.member} commits {tp} in generation {author.generation}, {self.settled.generation} is settled",
            )
        if session != self._coordinator_session:
            raise Violation(ONE_COORDINATOR, f"a deposed coordinator commits {tp} for {author.member}")

    def _advance(self, group: GroupId, tp: TopicPartition, committed: CommittedOffset, author: Author) -> None:
        if committed.offset > self.worked[group, tp]:
            raise Violation(
                NOTHING_SKIPPED,
                f"{author.member} commits {committed.offset} of {tp}, only {self.worked[group, tp]} are worked on",
            )
        if group == ACTORS and committed.offset < self.committed[group, tp]:
            raise Violation(
                STALE_COMMIT, f"{author.member} commits {committed.offset} of {tp} after {self.committed[group, tp]}"
            )
        self.committed[group, tp] = max(NO_OFFSET, committed.offset)
        self._stands[group, tp].append(committed.offset)
        self.commits[group] += 1

    # --- topics

    def gone(self) -> None:
        """The topic is deleted, and nobody's offset is one of it."""
        self.is_there = False
        for stood in self._stands.values():
            stood.append(NO_OFFSET)

    def made_anew(self) -> None:
        """It is there again, without records."""
        self.is_there = True
        self.life += 1
        for key in self._stands:
            self.worked[key] = self.committed[key] = 0

    # --- what members do

    def works(self, group: GroupId, tp: TopicPartition, position: int, at_work: Iterable[MemberId]) -> None:
        """A member hands out the record at ``position``; ``at_work``: all who may hand out what of ``tp`` now."""
        if group == ACTORS:
            heard = self._engine.now - SESSION_TIMEOUT_MS
            owners = [m for m in at_work if not self.excused(m) and self._evicted.get(m, heard) <= heard]
            if len(owners) > 1:
                raise Violation(ONE_OWNER, f"{tp} is worked on by {' and '.join(owners)}")
        if position > self.worked[group, tp]:
            raise Violation(NOTHING_SKIPPED, f"{tp} goes on at {position}, {self.worked[group, tp]} are worked on")
        self.worked[group, tp] = max(self.worked[group, tp], position + 1)
        self.handed[group, tp] += 1

    def asks(self, group: GroupId, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """An offset is about to be read: a mark for :meth:`reads`."""
        return {tp: len(self._stands[group, tp]) for tp in partitions}

    def reads(self, group: GroupId, tp: TopicPartition, offset: int, asked: int) -> None:
        """The answer has come: NO_OFFSET for none."""
        stood = self._stands[group, tp][asked - 1 :]
        if offset not in stood:
            raise Violation(READ, f"{offset} is read of {tp} in group {group}, committed were {stood} meanwhile")

    def told(self, member: MemberId, generation: int, share: bytes) -> None:
        """A client has the answer to its SyncGroup."""
        stored = self._generations.get(generation, {}).get(member)
        if stored != share:
            raise Violation(
                STORED_FIRST, f"{member} was told {[*share]} of generation {generation}, stored is {stored!r}"
            )
