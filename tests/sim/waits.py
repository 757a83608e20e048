"""Nothing waits for long: an invariant with time, looked at now and then through the whole run.

A partition has records for its reader nearly always. So its reader has to read some every few seconds, as long as
nothing is hindered on which that depends: of a partition that an actor owns that actor, of one that nobody owns all of
them, and of clients and consumers all brokers, too. While something is hindered, no time counts.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from raylog.coordination.store.port import SessionState
from raylog.protocol.ids import TopicPartition

from .engine import Process, Thread, Violation
from .group_clients import REBALANCE_MS, SESSION_MS
from .group_invariants import ACTORS, CLIENTS, PARTITIONS
from .invariants import IN_TIME
from .zookeeper import SimStore

if TYPE_CHECKING:
    from .group_clients import SimClient
    from .group_members import SimMember
    from .world import World

LOOK_MS = 250
LONGEST_MS = 5_000
"""A session's timeout, and two seconds: in this time it has lapsed, and another has taken over."""


class Waits:
    """See the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._engine = world.engine
        self._ensemble = world.ensemble
        self._since: dict[Hashable, int] = {}
        """From when on each reader's time counts."""
        self._seen: dict[Hashable, int] = {}
        """How far each reader was at the last look: a consumer's position, or how many records a group was handed."""
        self._thread = Thread(Process("waits"))
        self._engine.at(LOOK_MS, self._thread, self._look)

    def _look(self) -> None:
        self._engine.at(LOOK_MS, self._thread, self._look)
        world, groups = self._world, self._world.groups
        is_hindered = self._is_world_hindered()
        for consumer in world.consumers:
            for tp, position in consumer.positions.items():
                has_all = position >= world.checker.partitions[tp].committed_end
                self._reads((consumer.number, tp), position, excused=is_hindered or has_all)
        if groups is None:
            return
        checker, members = groups.checker, [each for each in groups.members if each.process.alive]
        some_is = any(map(self._is_member_hindered, members)) or not members
        owners = {each.store.session.id: each for each in members if each.store.is_started}
        is_there = checker.is_there and not self._is_zookeeper_hindered()
        for tp in groups.partitions:
            owner = checker.owner_session(tp)
            excused = some_is if owner is None else owner not in owners or self._is_member_hindered(owners[owner])
            self._reads((ACTORS, tp), checker.handed[ACTORS, tp], excused=excused or not is_there)
        excused = is_hindered or not is_there or any(map(self._is_client_hindered, groups.clients))
        for tp in PARTITIONS:
            self._reads((CLIENTS, tp), checker.handed[CLIENTS, tp], excused=excused)

    def _reads(self, who: tuple[Hashable, TopicPartition], read: int, *, excused: bool) -> None:
        now = self._engine.now
        if excused or self._seen.get(who) != read:
            self._since[who], self._seen[who] = now, read
            return
        waited = now - self._since[who]
        if waited > LONGEST_MS:
            reader, tp = who
            raise Violation(
                IN_TIME, f"{reader} has read {read} of {tp}, and no more for {waited} ms, though nothing is hindered"
            )

    # --- what is hindered

    def _is_zookeeper_hindered(self) -> bool:
        weather = self._world.weather
        return bool(weather.slow or weather.far or weather.lost or weather.answer_lost or self._world.damaged_values)

    def _is_store_hindered(self, store: SimStore) -> bool:
        return not store.is_started or (
            not store.is_reachable
            or store.session_state is not SessionState.CONNECTED
            or not self._ensemble.is_live(store.session.id)
            or store.thread.is_held_up(self._engine.now)
        )

    def _is_world_hindered(self) -> bool:
        world, traffic = self._world, self._world.traffic
        return bool(
            self._is_zookeeper_hindered()
            or traffic.cuts
            or traffic.deaf
            or traffic.far
            or traffic.lost
            or traffic.slow
            or len(world.brokers) < len(world.ids)
            or any(self._is_store_hindered(broker.store) for broker in world.brokers.values())
        )

    def _is_member_hindered(self, member: SimMember) -> bool:
        return self._is_store_hindered(member.store) or member.is_stuck

    def _is_client_hindered(self, client: SimClient) -> bool:
        """One that is gone hinders, too, until its session is over, and the rebalance that follows."""
        now = self._engine.now
        return now < max(client.process.paused_until, client.ended_ms + SESSION_MS + REBALANCE_MS)
