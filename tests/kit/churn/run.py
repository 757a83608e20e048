"""A churn from its beginning to its judgement."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kit import history
from kit.churn.actions import Actions, Plan
from kit.churn.deletes import Trimmer
from kit.churn.groups import Actors, Clients, ClientsOfOneLife, Group, Member, ages_s, unread
from kit.churn.health import BrokerLogs, deleted_files, offline_directories
from kit.churn.lookups import LookUps, LookUpsBesideDeletion, wrong_look_ups
from kit.churn.producers import ById, Librdkafka, Ours
from kit.churn.readers import RandomFetcher, SessionReader, bounds_at_leader, note_records
from kit.churn.topics import Log
from kit.churn.world import ChurnThread, Unanswered, WatchedCluster, World
from kit.history_checker import Judgement, check
from kit.machine import scaled, scaled_ms
from kit.waiting import wait_until
from raylog.protocol.records import decode_batches
from raylog.protocol.wire.fetch import FetchPartition, FetchRequest, FetchTopic

__all__ = ["CONFIG", "PLANS", "Report", "churn"]

SEGMENT_BYTES = 16 * 1024
RETENTION_BYTES = 64 * 1024
RETENTION_MS = 5_000
RECORD_BYTES = 400
"""At most so many a record takes, with the header of its batch."""
IN_FLIGHT = 40
"""Records that may be truncated after a look of retention counted them: what two producers have under way."""
WAIT_S = 120.0
STOP_S = 120.0
QUIET_S = 60.0
FINAL_BYTES = 1 << 20
CONFIG = {
    "replica.lag.time.max.ms": "10000",
    "log.retention.check.interval.ms": "200",
    "log.flush.offset.checkpoint.interval.ms": "1000",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
_SEGMENTS = {"segment.bytes": str(SEGMENT_BYTES), "index.interval.bytes": str(SEGMENT_BYTES)}
"""Small, so that many come and go, and without much of an index, so that look-ups read in them."""
_ALONE = {**_SEGMENTS, "min.insync.replicas": "1"}
SPLITS_BATCHES = frozenset({"librdkafka", "librdkafka-renewed"})
PLANS = [
    Plan("kept", 2, 3, _SEGMENTS, {}),
    Plan("trimmed", 2, 3, _SEGMENTS, {}),
    Plan("solo", 2, 1, _ALONE, {}),
    Plan(
        "sized",
        2,
        3,
        {**_SEGMENTS, "retention.bytes": str(RETENTION_BYTES)},
        {"keeps_records": RETENTION_BYTES // RECORD_BYTES - IN_FLIGHT},
    ),
    Plan("timed", 2, 3, {**_SEGMENTS, "retention.ms": str(RETENTION_MS)}, {"keeps_ms": RETENTION_MS}),
    Plan("renewed", 2, 3, _SEGMENTS, {}, renewed=True),
    Plan("renewed-solo", 2, 1, _ALONE, {}, renewed=True),
    Plan("idle", 60, 1, {}, {}),
]
STABLE = ("kept", "trimmed", "solo", "sized", "timed")
TRIMMED = frozenset({"trimmed", "solo", "renewed", "renewed-solo"})
RENEWED = ("renewed", "renewed-solo")
GROUPS: list[tuple[type[Member], str, Sequence[str], int]] = [
    (Actors, "actors", ("kept", "solo", "renewed", "renewed-solo"), 2),
    (Clients, "clients", ("kept", "solo"), 2),
    (Clients, "cooperative clients", ("kept", "trimmed"), 2),
    (ClientsOfOneLife, "clients of one life", ("renewed",), 1),
    (ClientsOfOneLife, "clients of one solo life", ("renewed-solo",), 1),
]
"""Kinds of members, their group, its topics, and how many there are."""


@dataclass(slots=True)
class Report:
    """What a churn found."""

    seed: int
    seconds: float
    counts: Counter[str]
    faults: list[str] = field(default_factory=list)
    """Whatever a client or a broker told that must not be."""
    judgement: Judgement | None = None
    """Of the history; None where the cluster did not come to rest."""
    waits: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """By group: how long acknowledged records waited for it, in seconds: half of them, 99 of 100, all."""
    deleted_files: dict[int, list[str]] = field(default_factory=dict)
    most_deleted_files: int = 0

    def __str__(self) -> str:
        counts = ", ".join(f"{what} {count}" for what, count in sorted(self.counts.items()))
        return f"{self.seconds:g} s of churn (SEED={self.seed}): {self.judgement}; most deleted files open at once " + (
            f"{self.most_deleted_files}; {counts}; waits for groups (p50, p99, most): "
            + ", ".join(f"{group} {p50:.2f} {p99:.2f} {most:.2f} s" for group, (p50, p99, most) in self.waits.items())
        )


def churn(root: Path, *, seconds: float, seed: int) -> Report:
    """Run it, in ``root``, which holds the brokers' logs and the history afterwards."""
    with WatchedCluster(root / "cluster", session_ms=scaled_ms(6_000), config=CONFIG) as cluster:
        world = World(cluster, seed)
        report = Report(seed, seconds, world.counts)
        logs = BrokerLogs(world)
        actions = Actions(world, PLANS)
        look_ups = [
            LookUps(world, "look-ups"),
            *(LookUpsBesideDeletion(world, f"look-ups beside deletion {n}", TRIMMED) for n in range(2)),
        ]
        threads: list[ChurnThread] = []
        groups = {name: Group(name, topics) for _, name, topics, _ in GROUPS}
        members = [kind(world, groups[name], n) for kind, name, _, count in GROUPS for n in range(count)]
        actions.leave_before_deletion = [each for each in members if isinstance(each, ClientsOfOneLife)]
        try:
            actions.begin()
            threads += [
                Librdkafka(world, "librdkafka", STABLE, 2, pause_s=0.02, timeout_ms=60_000),
                Librdkafka(world, "librdkafka-renewed", RENEWED, 2, pause_s=0.05, timeout_ms=15_000, apart=True),
                Ours(world, "raylog", STABLE, 2, pause_s=0.03),
                Ours(world, "raylog-renewed", RENEWED, 2, pause_s=0.05),
                ById(world, "by-id", ("renewed", "renewed-solo", "kept"), pause_s=0.02),
                *(SessionReader(world, broker) for broker in range(cluster.size)),
                Trimmer(world, "trimmer", frozenset({"trimmed", "renewed"})),
                Trimmer(world, "trimmer of one replica", frozenset({"solo", "renewed-solo"})),
                RandomFetcher(world, "fetcher"),
                *look_ups,
            ]
            for thread in (*threads, *members):
                thread.start()
            ends = time.monotonic() + seconds
            while time.monotonic() < ends and not world.faults:
                actions.step()
                world.faults[:0] = logs.bad()
                report.most_deleted_files = max(report.most_deleted_files, *map(len, deleted_files(world).values()))
            if not world.faults:
                _come_to_rest(world, actions, threads)
                rest_ns = time.monotonic_ns()
                world.faults += offline_directories(world)
                report.deleted_files = _wait_for_closed_files(world)
                _drain(world, actions)
                world.faults += unread(world, list(groups.values()), rest_ns)
        except AssertionError as error:
            world.fault(str(error))
        finally:
            world.stopping.set()
            for member in members:
                member.finish()
            for thread in (*threads, *members):
                if thread.is_alive():
                    thread.join(scaled(STOP_S))
            actions.connections.close()
            actions.admin.close()
            world.faults[:0] = logs.bad()  # more of a cause than what clients were told of it
        ops = world.recorder.ops()
        for name, group in groups.items():
            world.counts[f"group {name}: handed out"] = group.handed_out
            if ages := ages_s(group, ops):
                report.waits[name] = (ages[len(ages) // 2], ages[len(ages) * 99 // 100], ages[-1])
        history.save(ops, root / "history.jsonl")
        if not world.faults:
            report.judgement = check(ops, least_acked=100, splits_batches=SPLITS_BATCHES)
            world.faults += wrong_look_ups(world, [answer for each in look_ups for answer in each.answers], ops)
        report.faults = world.faults
    return report


def _come_to_rest(world: World, actions: Actions, threads: list[ChurnThread]) -> None:
    """Send and read no more; every broker is there, and every replica in sync."""
    actions.bring_back()
    world.stopping.set()
    deadline = time.monotonic() + STOP_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for thread in threads:
        if thread.is_alive():
            world.fault(f"the churn's own thread {thread.name} does not end")
    world.topics.settle_all()
    wait_until(actions.in_sync, WAIT_S, "every replica is in sync again", instead=lambda: _laggards(world))


def _laggards(world: World) -> list[str]:
    states = {
        str(log): world.cluster.state(life.name, log.index) for life in world.topics.current() for log in life.logs
    }
    return [f"{log}: {state}" for log, state in states.items() if set(state.isr) != set(state.replicas)]


def _wait_for_closed_files(world: World) -> dict[int, list[str]]:
    """Of each broker the deleted files that it does not close."""
    deadline = time.monotonic() + QUIET_S

    def closed_or_late() -> bool:
        return time.monotonic() > deadline or not any(deleted_files(world).values())

    wait_until(closed_or_late, 2 * QUIET_S, "deleted files are closed", interval_s=0.5)
    return {broker: files for broker, files in deleted_files(world).items() if files}


def _drain(world: World, actions: Actions) -> None:
    """Read every log from its start to its end, as they are told before and after."""
    for log in world.topics.logs():
        wait_until(lambda log=log: _read_to_end(world, actions, log), WAIT_S, f"{log} is read from start to end")  # type: ignore[misc]


def _read_to_end(world: World, actions: Actions, log: Log) -> bool:
    """Whether it could be read so; what of it was read is in the history in any case."""
    begun = time.monotonic_ns()
    before = bounds_at_leader(actions, log)
    if before is None:
        return False
    broker, at, end = before
    found = []
    while at < end:
        part = FetchPartition(log.index, at, FINAL_BYTES)
        request = FetchRequest(0, 1, [FetchTopic("", log.life.topic_id, [part])], FINAL_BYTES)
        try:
            [answer] = actions.connections.fetch(broker, 16, request).topics[0].partitions
        except Unanswered:
            return False
        if answer.error_code or not answer.records:
            return False
        records = note_records(world, log, decode_batches(answer.records, from_offset=at))
        found += records
        at = records[-1][0] + 1
    asked = time.monotonic_ns()
    after = bounds_at_leader(actions, log)
    if after is None:
        return False
    if found:
        world.topics.read("drain", begun, log, begun, found, final=True)
    world.recorder.add("drain", asked, "starts", {}, {"starts": [[log.number, after[1]]]})
    world.recorder.add("drain", asked, "ends", {}, {"ends": [[log.number, after[2]]]})
    return after[2] == end
