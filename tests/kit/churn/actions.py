"""What is done to the cluster while everybody works on it: chosen by a seed, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple
from uuid import UUID

from kit.churn.deletes import delete_records
from kit.churn.groups import ClientsOfOneLife
from kit.churn.readers import bounds_at_leader
from kit.churn.world import ChurnThread, Unanswered, World
from kit.machine import scaled_ms
from kit.waiting import wait_until
from raylog.client.admin import Admin
from raylog.protocol.errors import RaylogError, UnknownTopicOrPartition

__all__ = ["Actions", "Plan"]

WAIT_S = 120.0
RETRY_S = 0.1


class Plan(NamedTuple):
    """A topic of the churn."""

    name: str
    partitions: int
    replicas: int
    config: Mapping[str, str]
    retention: Mapping[str, int]
    """As the history has it."""
    renewed: bool = False
    """Whether it is deleted and made anew."""


class Actions(ChurnThread):
    """Runs in the thread of the test: :meth:`step` until the time is over."""

    def __init__(self, world: World, plans: list[Plan]) -> None:
        super().__init__(world, "actions")
        self._plans = {plan.name: plan for plan in plans}
        self._down: int | None = None
        """The broker that was killed and is to be started again."""
        self._again_after = 0
        self.leave_before_deletion: list[ClientsOfOneLife] = []
        self.admin = Admin(
            world.cluster.bootstrap_servers,
            request_timeout_ms=scaled_ms(15_000),
            default_api_timeout_ms=scaled_ms(60_000),
        )
        self._choices: list[tuple[Callable[[], bool], int]] = [
            (self.delete_records, 8),
            (self.renew_topic, 5),
            (self.elect_preferred_leaders, 2),
            (self.reassign, 4),
            (self.kill, 3),
            (self.drain, 1),
        ]

    def begin(self) -> None:
        for plan in self._plans.values():
            self._create(plan)

    def step(self) -> None:
        """One action, at first one that was never done; a broker that is down comes back after some others."""
        acts, weights = zip(*self._choices, strict=True)
        missing = [act for act in acts if not self.world.counts[f"action {act.__name__}"]]
        [act] = self.rng.choices(missing) if missing else self.rng.choices(acts, weights)
        done = act()
        self.world.counts[f"action {act.__name__}" if done else f"not done: {act.__name__}"] += 1
        if self._down is not None:
            self._again_after -= 1
            if self._again_after <= 0:
                self.bring_back()
        self.pause(self.rng.uniform(0.1, 0.6))

    def end(self) -> None:
        self.bring_back()
        self.admin.close()

    # --- topics

    def _create(self, plan: Plan) -> None:
        """Make the topic, however often it takes, and wait until every broker that serves knows it, and no other."""
        asked = time.monotonic_ns()
        former = {life.topic_id for life in self.world.topics.all()}

        def created() -> UUID | None:
            ids = self._ids(plan.name)
            if len(ids) == 1 and not ids & (former | {None}):
                return ids.pop()
            try:
                self.admin.create_topic(
                    plan.name, plan.partitions, replication_factor=plan.replicas, configs=plan.config
                )
            except RaylogError as error:
                self.world.counts[f"not created: {type(error).__name__}"] += 1
            return None

        topic_id = wait_until(created, WAIT_S, f"all brokers know a new {plan.name}", interval_s=RETRY_S)
        assert topic_id is not None
        self.world.topics.begin(plan.name, topic_id, plan.partitions, asked, **plan.retention)

    def _ids(self, name: str) -> set[UUID | None]:
        """What the brokers that serve know of a topic: one id, if they agree."""
        ids: set[UUID | None] = set()
        for broker in sorted(self.world.up_since):
            try:
                ids.add(self.connections.metadata(broker)[1].get(name))
            except Unanswered:
                ids.add(None)
        return ids

    def renew_topic(self) -> bool:
        """Delete a topic, and make it anew under its name, at once or a little later."""
        life = self.rng.choice([life for life in self.world.topics.current() if self._plans[life.name].renewed])
        leaving = [member for member in self.leave_before_deletion if life.name in member.group.topics]
        for member in leaving:
            member.leave()
        self.world.topics.drop(life)

        def deleted() -> bool:
            try:
                error = self.admin.delete_topics([life.name])[life.name]
            except RaylogError as unavailable:
                error = unavailable
            if error is not None:
                self.world.counts[f"not deleted: {type(error).__name__}"] += 1
            return error is None or isinstance(error, UnknownTopicOrPartition)

        wait_until(deleted, WAIT_S, f"topic {life.name} is deleted", interval_s=RETRY_S)
        self.pause(self.rng.choice([0, 0, 0.05, 0.5]))
        plan = self._plans[life.name]
        if plan.replicas == self.world.cluster.size:
            self.bring_back()  # which finds a log whose topic is gone; no controller makes a topic with too few brokers
        self._create(plan)
        for member in leaving:
            member.come_back()
        return True

    def delete_records(self) -> bool:
        """Of one partition: some of its oldest records, or now and then all."""
        log = self.world.topics.choose(self.rng)
        share = self.rng.choice([0.1, 0.3, 0.3, 0.6, 1.0])
        is_all = self.rng.random() < 0.1
        bounds = bounds_at_leader(self, log)
        if bounds is None or bounds[1] == bounds[2]:
            return False
        broker, start, end = bounds
        offset = start + max(1, int((end - start) * share))
        return delete_records(self, broker, log, -1 if is_all else offset)

    # --- leaders

    def elect_preferred_leaders(self) -> bool:
        try:
            answers = self.admin.elect_leaders(None)
        except RaylogError as error:
            self.world.counts[f"not elected: {type(error).__name__}"] += 1
            return False
        return any(error is None for error in answers.values())

    def reassign(self) -> bool:
        """Other replicas, or the same ones in another order, so that another is preferred."""
        log = self.world.topics.choose(self.rng)
        brokers = list(range(self.world.cluster.size))
        self.rng.shuffle(brokers)
        replicas = brokers[: self._plans[log.life.name].replicas]
        if not set(replicas) <= self.world.up_since.keys():
            return False
        place = (log.life.name, log.index)
        try:
            [error] = self.admin.alter_partition_reassignments({place: replicas}).values()
            self.admin.elect_leaders([place])
        except RaylogError as unavailable:
            error = unavailable
        if error is not None:
            self.world.counts[f"not reassigned: {type(error).__name__}"] += 1
        return error is None

    # --- brokers

    def kill(self) -> bool:
        """kill -9, unless replicas lag behind: two of three would be away at once."""
        return self._take_down(self.world.cluster.kill)

    def drain(self) -> bool:
        """An orderly stop: its leaders move before it ends."""
        return self._take_down(self.world.cluster.stop)

    def _take_down(self, end: Callable[[int], object]) -> bool:
        broker = self.rng.randrange(self.world.cluster.size)
        after = self.rng.randint(1, 4)
        if self._down is not None or not self.in_sync():
            return False
        self._down, self._again_after = broker, after + 1
        self.world.up_since.pop(broker)
        end(broker)
        return True

    def bring_back(self) -> None:
        """Start what was taken down, and wait until it serves."""
        if self._down is not None:
            self.world.cluster.start(self._down)
            self.world.cluster.wait_serving(self._down, WAIT_S)
            self.world.up_since[self._down] = time.monotonic()
            self._down = None

    def in_sync(self) -> bool:
        """Whether every replica of every topic is in sync."""
        states = (
            self.world.cluster.state(life.name, log.index) for life in self.world.topics.current() for log in life.logs
        )
        return all(set(state.isr) == set(state.replicas) for state in states)
