"""Kafka's answers, kept: so that ours are compared with them where there is no Java.

A line of JSON each: of a sequence its name, a digest of its requests, and its answers. ``make judge-record`` writes the
file anew.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from judge.asker import Answers
from judge.cases import edge_cases
from judge.lives import lives
from judge.steps import Sequence

__all__ = ["SEEDS", "UNRECORDED", "is_unrecorded", "load", "recorded_sequences", "save"]

DATA = Path(__file__).with_name("kafka.jsonl.xz")
SEEDS = (1, 2, 3)
LIVES = 35
UNRECORDED = ("settings *", "Produce * topic_data.partition_data.records=compressed-*")
"""Names of the sequences, with ``*``, that Kafka was not asked yet. A pattern goes once its answers are kept."""


def recorded_sequences() -> Iterator[Sequence]:
    """Everything that is asked: the edges, and of each kind of life LIVES under each seed."""
    yield from edge_cases()
    for seed in SEEDS:
        yield from lives(seed, LIVES)


def load(wanted: Iterable[Sequence]) -> tuple[str, dict[str, Answers]]:
    """Kafka's version, and its answers by the name of each sequence of ``wanted`` that is not UNRECORDED. Raises
    ValueError where Kafka was not asked so, and where it was although the sequence is UNRECORDED."""
    version, kept = _read()
    asked = [each for each in wanted if not is_unrecorded(each.name)]
    stale = [each.name for each in asked if each.name not in kept or kept[each.name][0] != _digest(each)]
    if stale:
        raise ValueError(f"{len(stale)} sequences, as {stale[0]!r}, were not asked so: make judge-record")
    if idle := [pattern for pattern in UNRECORDED if any(fnmatchcase(name, pattern) for name in kept)]:
        raise ValueError(f"{idle} are recorded: take them out of UNRECORDED")
    return version, {each.name: kept[each.name][1] for each in asked}


def is_unrecorded(name: str) -> bool:
    """Whether Kafka's answers to the sequence of this name are not kept yet."""
    return any(fnmatchcase(name, pattern) for pattern in UNRECORDED)


def save(version: str, everything: Iterable[Sequence], answers: Mapping[str, Answers]) -> None:
    """Keep these answers, and those to the others of ``everything`` that were kept before."""
    _, kept = _read() if DATA.exists() else ("", {})
    new = {each.name: (_digest(each), answers.get(each.name)) for each in everything}
    whole = {
        name: (digest, found) if found else kept[name] for name, (digest, found) in new.items() if found or name in kept
    }
    lines = [_line({"kafka": version}), *(_line([name, *each]) for name, each in whole.items())]
    DATA.write_bytes(lzma.compress("\n".join(lines).encode(), preset=6))


def _read() -> tuple[str, dict[str, tuple[str, Answers]]]:
    first, *lines = lzma.decompress(DATA.read_bytes()).decode().splitlines()
    return json.loads(first)["kafka"], {name: (digest, answers) for name, digest, answers in map(json.loads, lines)}


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _digest(sequence: Sequence) -> str:
    return hashlib.sha256(repr(sequence.steps).encode()).hexdigest()[:8]
