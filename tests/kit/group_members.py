"""Readers of numbered records in groups: members with a user's thread that does what it is told, and a check on all."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from re import Pattern
from typing import Any

from kit.machine import scaled
from kit.topics import put_topic
from raylog.client.groups.changes import Assigned, Lost, Revoked
from raylog.client.groups.member import GroupMember
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.coordination.store.port import MetadataStore
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import GroupId, InstanceId, Offset, PartitionIndex, TopicName, TopicPartition

GROUP = GroupId("readers")
TOPIC = TopicName("flights")


def tps(*indexes: int, topic: str = TOPIC) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(TopicName(topic), PartitionIndex(index)) for index in indexes)


def make_topic(store: MetadataStore, partitions: int, topic: str = TOPIC) -> None:
    """Its nodes alone: for members, who never ask brokers."""
    put_topic(store, topic, partitions)


class Ledger:
    """Which records were read, by whichever member."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[TopicPartition, set[int]] = {}

    def read(self, tp: TopicPartition, offset: int) -> None:
        with self._lock:
            self._read.setdefault(tp, set()).add(offset)

    def read_count(self) -> int:
        with self._lock:
            return sum(map(len, self._read.values()))

    def unread(self, partitions: Iterable[TopicPartition], upto: int) -> list[tuple[TopicPartition, int]]:
        with self._lock:
            return [(tp, n) for tp in partitions for n in range(upto) if n not in self._read.get(tp, ())]


def started(
    store: MetadataStore,
    topics: frozenset[TopicName] | Pattern[str] = frozenset({TOPIC}),
    instance: InstanceId | None = None,
    **settings: Any,
) -> GroupMember:
    """A member of GROUP, registered."""
    member = GroupMember(store, GROUP, topics, host="127.0.0.1", instance=instance, **settings)
    member.start(30)
    return member


class Reader:
    """A member, started, with a user's thread that hands out one record after the other of what it has."""

    def __init__(self, member: GroupMember, ledger: Ledger | None = None) -> None:
        self.member = member
        self.positions: dict[TopicPartition, Offset] = {}
        self.log: list[Assigned | Revoked | Lost] = []
        self.error: RaylogError | None = None
        self.end = 0
        """It reads up to here, of each partition."""
        self._ledger = ledger or Ledger()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The user's thread ends, the member stays."""
        self._stopping.set()
        self._thread.join(scaled(30))

    def leave(self) -> bool:
        self.stop()
        return self.member.leave(30, {tp: CommittedOffset(offset) for tp, offset in self.positions.items()})

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.member.wait(0.01)
                self.member.polled()
                for change in self.member.changes():
                    self._take(change)
                self._read()
        except RaylogError as error:
            self.error = error

    def _take(self, change: Assigned | Revoked | Lost) -> None:
        self.log.append(change)
        tp = change.tp
        match change:
            case Assigned(_, committed):
                self.positions[tp] = Offset(0) if committed is None else committed.offset
            case Revoked():
                self.member.quiet(tp, CommittedOffset(self.positions.pop(tp)))
            case Lost():
                self.positions.pop(tp, None)

    def _read(self) -> None:
        for tp, position in self.positions.items():
            if position < self.end and self.member.may_deliver(tp):
                self._ledger.read(tp, position)
                self.positions[tp] = Offset(position + 1)
