"""Two coordinators that both think a group is theirs, many members at once: one share a generation, no deadlock."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from kit.machine import scaled
from kit.node import registered_store
from kit.topics import put_topic
from raylog.broker.config import BROKER_SETTINGS
from raylog.broker.config.groups import GroupRules
from raylog.broker.groups.classic.messages import Identity, Join, Joined, Leaver, Protocol, Sync
from raylog.broker.groups.coordinator import GroupCoordinator
from raylog.coordination.groups.offsets import CommittedOffset
from raylog.coordination.host.loops import Loops
from raylog.coordination.metadata.model import BrokerInfo, ClusterState
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.protocol.errors import RaylogError, UnknownMemberId
from raylog.protocol.ids import (
    NO_GENERATION,
    NO_MEMBER,
    BrokerEpoch,
    BrokerId,
    Generation,
    GroupId,
    MemberId,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
)

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

GROUP = GroupId("billing")
TP = TopicPartition(TopicName("t"), PartitionIndex(0))
SECONDS, MEMBERS = 4.0, 8
PATIENCE_S = 15.0
"""For any answer: who is never answered waits longer."""


class Contest:
    """Two brokers that each take themselves alone for live, so that either claims the group from the other."""

    def __init__(self) -> None:
        tree = MemoryTree()
        self.leases = {1: True, 2: True}
        self.stores = {broker: registered_store(BrokerId(broker), BrokerEpoch(1), tree) for broker in self.leases}
        self._topics = {TP.topic: put_topic(self.stores[1], TP.topic)}
        self.coordinators = [self._coordinator(broker) for broker in self.leases]
        self.shares: dict[int, set[bytes]] = defaultdict(set)
        """By generation, what its leader said, as members were told it; each leader says something else each time."""
        self.commits: list[tuple[float, float, int]] = []
        """When each was asked for, when it was answered, and the generation."""
        self.defects: list[BaseException] = []
        self.stopping = threading.Event()

    def _coordinator(self, broker: int) -> GroupCoordinator:
        coordinator = GroupCoordinator(
            BrokerId(broker),
            self.stores[broker],
            epoch=lambda: BrokerEpoch(1),
            cluster=lambda: ClusterState(brokers={BrokerId(broker): BrokerInfo(BrokerId(broker), BrokerEpoch(1), ())}),
            may_act=lambda: self.leases[broker],
            rules=GroupRules(min_session_timeout_ms=1, initial_rebalance_delay_ms=0),
            settings=lambda: BROKER_SETTINGS.settings({"broker.id": str(broker)}),
            loops=Loops(),
        )
        coordinator.start()
        return coordinator

    def run(self) -> None:
        members = [threading.Thread(target=self._guarded, args=(self._member, seed)) for seed in range(MEMBERS)]
        upset = threading.Thread(target=self._guarded, args=(self._upset, MEMBERS))
        for thread in (*members, upset):
            thread.start()
        self.stopping.wait(SECONDS)
        self.stopping.set()
        for thread in (*members, upset):
            thread.join()

    def close(self) -> None:
        for coordinator in self.coordinators:
            coordinator.stop()
        for store in self.stores.values():
            store.close()

    def _guarded(self, work: Callable[[random.Random], None], seed: int) -> None:
        try:
            work(random.Random(seed))
        except BaseException as error:  # noqa: BLE001 (the test tells it)
            self.defects.append(error)
            self.stopping.set()

    def _upset(self, rng: random.Random) -> None:
        """Leases lapse and come back."""
        while not self.stopping.wait(rng.uniform(0.001, 0.05)):
            self.leases[rng.choice((1, 2))] = rng.random() < 0.6
        self.leases = {1: True, 2: True}

    def _member(self, rng: random.Random) -> None:
        coordinator, member_id = self.coordinators[0], NO_MEMBER
        while not self.stopping.is_set():
            try:
                joined = coordinator.join(GROUP, _wishes(member_id)).result(scaled(PATIENCE_S))
                assert isinstance(joined, Joined)
                member_id = joined.member_id
                self._work(rng, coordinator, joined)
                if rng.random() < 0.1:
                    coordinator.leave(GROUP, [Leaver(member_id)])
                    member_id = NO_MEMBER
            except UnknownMemberId:
                member_id = NO_MEMBER
            except RaylogError:
                coordinator = rng.choice(self.coordinators)

    def _work(self, rng: random.Random, coordinator: GroupCoordinator, joined: Joined) -> None:
        """What a member does in one generation, until it hears that it is over."""
        who = Identity(joined.member_id, joined.generation)
        said = b"%d" % rng.getrandbits(64)
        assignments = tuple((member.member_id, said) for member in joined.members)
        share = coordinator.sync(GROUP, Sync(who, assignments)).result(scaled(PATIENCE_S)).assignment
        if share:  # one who joined late has none
            self.shares[joined.generation].add(share)
        for _ in range(rng.randrange(20)):
            coordinator = coordinator if rng.random() < 0.8 else rng.choice(self.coordinators)
            coordinator.heartbeat(GROUP, who)
            begun = time.monotonic()
            committing = coordinator.commit_offsets(GROUP, who, {TP: CommittedOffset(Offset(0))}, self._topics)
            if committing.result(scaled(PATIENCE_S)) == {TP: None}:
                self.commits.append((begun, time.monotonic(), joined.generation))


def _wishes(member_id: MemberId) -> Join:
    protocols = (Protocol("range", b""),)
    return Join(member_id, None, "c", "/h", 5_000, 300, "consumer", protocols, needs_id=False)


@pytest.fixture
def contest() -> Iterator[Contest]:
    contest = Contest()
    yield contest
    contest.close()


def test_two_coordinators_give_one_assignment_a_generation_and_leave_nobody_waiting(contest: Contest) -> None:
    contest.run()
    assert contest.defects == []  # among them: an answer that never came
    print(f"\n{len(contest.shares)} generations settled, {len(contest.commits)} commits")
    assert {len(said) for said in contest.shares.values()} == {1}
    assert len(contest.commits) > len(contest.shares)
    newest = NO_GENERATION
    answered = sorted((end, generation) for _, end, generation in contest.commits)
    for begun, _, generation in sorted(contest.commits):
        while answered and answered[0][0] < begun:
            newest = max(newest, Generation(answered.pop(0)[1]))
        assert generation >= newest, "a commit of an old generation came after one of a newer"
    assert len(contest.shares) > 3
