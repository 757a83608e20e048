"""What came out of Kafka's three brokers, kept, and what ours have otherwise.

cd tests && ../.venv/bin/python -m judge --three [--record | --replay]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from judge import kept
from judge.brokers import FEATURES
from judge.three.client import Cluster
from judge.three.running import Outcome, run
from judge.three.script import script
from kit.kafka_broker import KAFKA_VERSION, KafkaCluster
from kit.replicated import ReplicatedCluster

__all__ = ["SEEDS", "differences", "faults", "kafka", "load", "main", "outcomes", "raylog"]

DATA = Path(__file__).parents[1] / "kafka-three.jsonl.xz"
SEEDS = (1, 2, 3)
SESSION_MS = 2_000
CONFIG = {
    "auto.create.topics.enable": "false",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "log.retention.ms": "-1",
    "replica.lag.time.max.ms": "10000",
}
OF_KAFKA = {
    "auto.leader.rebalance.enable": "false",
    "broker.session.timeout.ms": str(SESSION_MS),
    "broker.heartbeat.interval.ms": "250",
}
"""Of Kafka alone: a dead broker is missed as soon as with us, and nobody leads who was not told to."""


def kafka(root: Path) -> AbstractContextManager[Cluster]:
    return KafkaCluster(root, {**CONFIG, **OF_KAFKA}, features=FEATURES)


def raylog(root: Path) -> AbstractContextManager[Cluster]:
    return ReplicatedCluster(root, config=CONFIG, session_ms=SESSION_MS)


def outcomes(
    start: Callable[[Path], AbstractContextManager[Cluster]], seeds: Iterable[int], *, says: bool = False
) -> dict[int, Outcome]:
    """What comes out under each seed; ``says``: tell how it goes."""
    found = {}
    with TemporaryDirectory() as root, start(Path(root)) as cluster:
        for seed in seeds:
            begun = time.monotonic()
            found[seed], met = run(seed, cluster)
            if says:
                took_s = time.monotonic() - begun
                print(f"{start.__name__}, seed {seed}: {len(script(seed))} acts, {took_s:.0f} s, {met}", flush=True)
    return found


def differences(ours: Any, kafka: Any, path: str = "") -> Iterator[str]:
    """Each value that differs."""
    match ours, kafka:
        case dict(), dict():
            for name in {**ours, **kafka}:
                yield from differences(ours.get(name, "–"), kafka.get(name, "–"), f"{path}.{name}" if path else name)
        case list(), list() if len(ours) == len(kafka):
            for index, (one, other) in enumerate(zip(ours, kafka, strict=True)):
                yield from differences(one, other, f"{path}[{index}]")
        case _ if ours != kafka:
            yield f"{path}: {ours}, Kafka {kafka}"


def faults(outcome: Outcome) -> Iterator[str]:
    """What was acknowledged and cannot be read, or cannot be read once, or is there without being acknowledged; and a
    batch that was sent again, and got another offset."""
    acked: dict[str, list[int]] = {}
    for act, found in outcome["acknowledged"].items():
        _, kind, name = act.split()
        if kind != "trim":
            acked.setdefault(name, []).extend(found[0])
            if any(offsets != found[0] for offsets in found):
                yield f"act {act}: sent again, its batches have other offsets: {found}"
    for name, log in outcome["readable"].items():
        begins = sorted(acked.get(name, []))
        ends = [*begins[1:], log["end"]]
        wanted = [begin for begin, end in zip(begins, ends, strict=False) if end > log["start"]]
        there = [batch["base_offset"] for batch in log["batches"]]
        if there != wanted:
            yield f"{name}: batches at {there}, but those at {wanted} were acknowledged"


def load(seeds: Iterable[int]) -> dict[int, Outcome]:
    """What came out of this version of Kafka. ValueError where a script, or the version, is another now."""
    version, all_kept = kept.read(DATA)
    if version != KAFKA_VERSION:
        raise ValueError(f"what is kept is of Kafka {version}, not of {KAFKA_VERSION}: make judge-record")
    return kept.current(all_kept, {seed: kept.digest(script(seed)) for seed in seeds}, "seeds", "make judge-record")


def main(*, replays: bool, records: bool) -> int:
    """1 where anything is acknowledged, or can be read, that is not as of Kafka."""
    theirs = load(SEEDS) if replays else outcomes(kafka, SEEDS, says=True)
    if records:
        kept.write(DATA, KAFKA_VERSION, {seed: (kept.digest(script(seed)), each) for seed, each in theirs.items()})
        return 0
    ours = outcomes(raylog, SEEDS, says=True)
    found = [
        f"seed {seed}: {each}"
        for seed in SEEDS
        for each in (*differences(ours[seed], theirs[seed]), *faults(ours[seed]), *faults(theirs[seed]))
    ]
    print("\n".join(found[:50]))
    print(f"three brokers, {len(SEEDS)} seeds: {len(found)} differences")
    return 1 if found else 0
