"""Coordinators of groups over one metadata store, in one process, without anything else of their brokers."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any
from uuid import UUID

from kit.machine import scaled
from kit.node import register
from kit.stores import Hanging
from kit.topics import put_topic
from kit.waiting import wait_until
from raylog.broker.config import BROKER_SETTINGS
from raylog.broker.config.groups import GroupRules
from raylog.broker.groups.classic.messages import Identity, Join, Joined, MemberIdIs, Protocol, Sync
from raylog.broker.groups.coordinator import GroupCoordinator
from raylog.broker.groups.holding.held import read_group
from raylog.coordination.host.clocks import monotonic_ms
from raylog.coordination.host.loops import Loops
from raylog.coordination.metadata import paths
from raylog.coordination.metadata.model import BrokerInfo, ClusterState
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.protocol.ids import NO_MEMBER, BrokerEpoch, BrokerId, GroupId, MemberId, MonotonicMs, TopicId, TopicName
from raylog.protocol.wire import consumer_protocol

GROUP = GroupId("billing")
RULES = GroupRules(min_session_timeout_ms=1, initial_rebalance_delay_ms=0)
WAIT_S = 10.0
IDS = {TopicName(name): TopicId(UUID(int=number)) for number, name in enumerate("tu", 1)}
"""Of the topics that there are."""


class Brokers:
    """Coordinators over one tree; what each knows of the cluster is set by hand."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        with MemoryStore(self.tree) as store:
            for name, topic_id in IDS.items():
                put_topic(store, name, new_id=topic_id)
        self.stores: dict[int, Hanging] = {}
        self.known: dict[int, set[int]] = {}
        """The brokers that each broker takes for live."""
        self.fenced: dict[int, set[int]] = {}
        """Those of them that it takes for fenced."""
        self.epochs: dict[int, int] = {}
        self.leases: dict[int, bool] = {}
        self.coordinators: dict[int, GroupCoordinator] = {}
        self.skipped_ms = 0
        """How far the clock of all of them was put forward."""

    def now_ms(self) -> MonotonicMs:
        return MonotonicMs(monotonic_ms() + self.skipped_ms)

    def start(self, broker: int, *, started: bool = True) -> GroupCoordinator:
        epoch = self.epochs[broker] = self.epochs.get(broker, 0) + 1
        self.stores[broker] = Hanging(self.tree)
        register(self.stores[broker], BrokerId(broker), BrokerEpoch(epoch))
        self.known[broker], self.leases[broker] = {broker}, True
        coordinator = self.coordinators[broker] = GroupCoordinator(
            BrokerId(broker),
            self.stores[broker],
            epoch=lambda: BrokerEpoch(self.epochs[broker]),
            cluster=lambda: self.state(broker),
            may_act=lambda: self.leases[broker],
            rules=RULES,
            settings=lambda: BROKER_SETTINGS.settings({"broker.id": str(broker)}),
            loops=Loops(),
            now_ms=self.now_ms,
        )
        if started:
            coordinator.start()
        return coordinator

    def state(self, broker: int) -> ClusterState:
        infos = (BrokerInfo(BrokerId(each), BrokerEpoch(self.epochs[each]), ()) for each in self.known[broker])
        fenced = frozenset(map(BrokerId, self.fenced.get(broker, ())))
        return ClusterState(brokers={info.id: info for info in infos}, fenced=fenced)

    def all_know(self, *alive: int) -> None:
        """The controller has told these which of them live."""
        self.known |= {broker: set(alive) for broker in alive}

    def kill(self, broker: int) -> None:
        """Its session ends with it; nothing of it acts any more."""
        self.leases[broker] = False
        self.coordinators.pop(broker).stop()
        self.stores.pop(broker).close()

    def keep(self, *brokers: int, after_ms: int = 0) -> None:
        """One pass of the keepers of these."""
        self.skipped_ms += after_ms
        for broker in brokers:
            self.coordinators[broker].keeper.keep()

    def lose_lease(self, broker: int) -> None:
        """It lapses; until the broker has let go of all its groups."""
        self.leases[broker] = False
        wait_until(lambda: self.coordinators[broker].held_count == 0, WAIT_S, "it lets go")

    def await_members_gone(self, broker: int, group: GroupId = GROUP) -> None:
        """Until none is stored any more, as this broker reads the group."""
        wait_until(lambda: not read_group(self.stores[broker], group).members, WAIT_S, "its member is given up")

    def register_anew(self, broker: int) -> None:
        """As membership does after a lost session."""
        self.stores[broker].set(paths.broker_epoch(BrokerId(broker)), b"")
        self.epochs[broker] += 1

    def stop(self) -> None:
        for store in self.stores.values():
            store.goes_on.set()
        for coordinator in self.coordinators.values():
            coordinator.stop()
        for store in self.stores.values():
            store.close()


def wishes(member_id: MemberId = NO_MEMBER, **more: Any) -> Join:
    subscription = consumer_protocol.encode_subscription(["t"])
    protocols = (Protocol("range", subscription),)
    join = Join(member_id, None, "c", "/h", 60_000, 60_000, consumer_protocol.PROTOCOL_TYPE, protocols, needs_id=False)
    return replace(join, **more)


def joined(answer: Future[Joined | MemberIdIs]) -> Joined:
    result = answer.result(scaled(WAIT_S))
    assert isinstance(result, Joined)
    return result


def member_of(coordinator: GroupCoordinator, group: GroupId = GROUP, **more: Any) -> Identity:
    """A member that makes a stable group of one."""
    join = joined(coordinator.join(group, wishes(**more)))
    who = Identity(join.member_id, join.generation)
    coordinator.sync(group, Sync(who, ((who.member_id, b"share"),))).result(scaled(WAIT_S))
    return who
