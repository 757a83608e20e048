"""Every kind of file damaged on one replica: nothing damaged is served, and it has the others' bytes again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from kit.forms import NIGHTLY, begin
from kit.history_checker import Verdict
from kit.replicated import ReplicatedCluster
from kit.segments import segment_bytes
from kit.waiting import wait_until
from kit.workload import Workload

pytestmark = [pytest.mark.system, pytest.mark.timeout(420)]

PARTITIONS = 2
RECORDS = 500
"""Acknowledgements before the first damage: some closed segments."""
CONFIG = {"segment.bytes": "4096", "index.interval.bytes": "512"}
"""Many segments, each with entries in its index."""
WAIT_S = 60.0
LEAST_TOLD = 0.6 if NIGHTLY else 0.4
"""The share of damages of which a broker tells; of seven, chance may hide more than of fourteen."""
PATIENT = {
    "request.timeout.ms": 30_000,
    "socket.timeout.ms": 30_000,
    "message.timeout.ms": 240_000,
    "batch.size": 2_048,
}
"""A producer that takes no slow broker for one that is gone, and whose batches fit into segments, however much it had
to keep: librdkafka would send what it has under way again under a new epoch.
"""
EVENT = re.compile(r"(WARNING|ERROR) (raylog\.broker\.\S+|root) (.*)")
META_PROPERTIES = "meta.properties"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path) as running:
        yield running


def flipped(path: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


def cut(path: Path, random: Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: random.randrange(len(data))])


class Kind(NamedTuple):
    """Some files of a log directory."""

    pattern: str
    which: slice = slice(None)
    """Of those that hold something, in order."""


CLOSED, ACTIVE = Kind("t-0/*.log", slice(None, -1)), Kind("t-0/*.log", slice(-1, None))
OTHERS = (
    Kind("t-0/*.index"),
    Kind("t-0/*.timeindex"),
    Kind("t-0/*.snapshot"),
    Kind("t-0/leader-epoch-checkpoint"),
    Kind("t-0/partition.metadata"),
    Kind("t-0/index-checksums"),
    Kind("recovery-point-offset-checkpoint"),
    Kind("replication-offset-checkpoint"),
    Kind("log-start-offset-checkpoint"),
    Kind(META_PROPERTIES),
)


LOGS = ((CLOSED, flipped, True), (CLOSED, cut, False), (ACTIVE, flipped, False), (ACTIVE, cut, True))
"""What is damaged, how, and whether it is the leader's."""
FLIPPED_FIRST = [(kind, (flipped, cut)[n % 2], n // 2 % 2 == 0) for n, kind in enumerate(OTHERS)]
CUT_FIRST = [(kind, (cut, flipped)[n % 2], n // 2 % 2 == 1) for n, kind in enumerate(OTHERS)]
ENDS = ("kill", "stop")
FIRST = begin(len(ENDS))


def damages(end: str) -> Iterator[tuple[Kind, Callable[[Path, Random], None], bool]]:
    """What is damaged after that end. For a change, the two ends share the damages: each file is damaged once."""
    yield from LOGS if NIGHTLY else LOGS[(ENDS.index(end) + FIRST) % 2 :: 2]
    others = FLIPPED_FIRST if end == "kill" else CUT_FIRST
    turn = (ENDS.index(end) + FIRST) % 2
    yield from (other for n, other in enumerate(others) if NIGHTLY or (n + n // 2 + n // 4) % 2 == turn)


class Tally:
    """What became of the damages."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.told: list[str] = []

    @staticmethod
    def of_logs(damages: list[str]) -> list[str]:
        return [what for what in damages if ".log " in what]

    def __str__(self) -> str:
        silent = ", ".join(sorted(set(self.done) - set(self.told)))
        share = len(self.told) * 100 // len(self.done)
        return f"{len(self.done)} damages, all mended; told {share} %, and not: {silent or 'none'}"


@pytest.mark.parametrize("end", ENDS)
def test_damage_on_one_replica_is_not_served_and_mended_from_the_others(
    cluster: ReplicatedCluster, tmp_path: Path, end: str
) -> None:
    """By turns on the leader's and on a follower's disk."""
    random, tally = Random(7), Tally()
    cluster.create_topic("t", partitions=PARTITIONS, config=CONFIG)
    with Workload(cluster.bootstrap_servers, "t", partitions=PARTITIONS, producer_config=PATIENT) as load:
        load.wait_acked(RECORDS, WAIT_S)
        for kind, damage, leads in damages(end):
            damage_one(cluster, end, kind, damage, leads, random, tally)
            load.wait_acked_everywhere(time.monotonic())
        killed = cluster.leader("t", 0)
        cluster.kill(killed)  # one that was damaged leads
        load.wait_acked_everywhere(time.monotonic())
        cluster.start(killed)
        cluster.wait_serving(killed)
        cluster.wait_in_sync("t", PARTITIONS)
    judgement = load.judge(keep=tmp_path / "history.jsonl")
    print(f"\nreplicas damaged after a {end}: {tally}; acked {judgement.acked}, lost {judgement.lost}; {judgement}")
    assert load.errors == []  # after a send was given up, librdkafka may write others twice
    assert judgement.verdict is Verdict.VALID, judgement.findings
    assert tally.of_logs(tally.told) == tally.of_logs(tally.done)
    assert len(tally.told) >= len(tally.done) * LEAST_TOLD  # what is made anew without a word is of no log
    wait_until(lambda: all_equal(cluster), WAIT_S, "all replicas have the same bytes")


def damage_one(
    cluster: ReplicatedCluster,
    end: str,
    kind: Kind,
    damage: Callable[[Path, Random], None],
    leads: bool,
    random: Random,
    tally: Tally,
) -> None:
    """Damage a file of a replica that does not run, if it has such a file with anything in it."""
    leader = cluster.leader("t", 0)
    victim = leader if leads else next(broker_id for broker_id in cluster.running if broker_id != leader)
    cluster.stop(victim) if end == "stop" else cluster.kill(victim)
    found = sorted((cluster.data_dir(victim) / "log").glob(kind.pattern))
    files = [path for path in found if path.stat().st_size][kind.which]
    before = cluster.output(victim).stat().st_size
    if files:
        path = random.choice(files)
        what = f"{kind.pattern} {damage.__name__}"
        damage(path, random)
    start(cluster, victim, before)
    cluster.wait_in_sync("t", PARTITIONS)
    wait_until(lambda: closed_segments_are_the_leaders(cluster, victim), WAIT_S, f"{kind} {damage.__name__}: mended")
    if files:
        tally.done.append(what)
        if path.suffix == ".log":  # of each of these something is told, of a segment in use only when it was read
            wait_until(lambda: is_told(cluster, victim, before, path), WAIT_S, f"{what}: told")
        if is_told(cluster, victim, before, path):
            tally.told.append(what)


def start(cluster: ReplicatedCluster, victim: int, before: int) -> None:
    """Start it; one that says that its directory is another's gets a new identity, as its operator would give it."""

    def has_decided() -> bool:
        said = since(cluster, victim, before)
        return "broker serves" in said or "the broker is refused" in said

    cluster.start(victim)
    wait_until(has_decided, WAIT_S, "it serves, or is refused")
    if "the broker is refused" in since(cluster, victim, before):
        cluster.kill(victim)
        (cluster.data_dir(victim) / "log" / META_PROPERTIES).unlink()
        cluster.start(victim)
    cluster.wait_serving(victim)


def since(cluster: ReplicatedCluster, broker_id: int, position: int) -> str:
    """What a broker said after that position of its output."""
    with cluster.output(broker_id).open("rb") as output:
        output.seek(position)
        return output.read().decode(errors="replace")


def is_told(cluster: ReplicatedCluster, victim: int, before: int, path: Path) -> bool:
    """Whether the broker warned of something about that file, its partition or its directory."""
    events = EVENT.findall(since(cluster, victim, before))
    names = {path.name, path.stem, path.parent.name, str(path.parent)}
    return any(any(name in line for name in names) for _, _, line in events)


def closed_segments_are_the_leaders(cluster: ReplicatedCluster, victim: int) -> bool:
    """As far as both have them closed."""
    ours = sorted(cluster.partition_dir(victim, "t", 0).glob("*.log"))[:-1]
    theirs = cluster.log_bytes(cluster.leader("t", 0), "t", 0)
    return theirs.startswith(b"".join(map(segment_bytes, ours)))


def all_equal(cluster: ReplicatedCluster) -> bool:
    return all(
        len({cluster.log_bytes(broker_id, "t", partition) for broker_id in range(cluster.size)}) == 1
        for partition in range(PARTITIONS)
    )
