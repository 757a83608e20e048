"""Kafka's answers, kept: so that ours are compared with them where there is no Java.

A line of JSON each: of a sequence its name and its answers. ``make judge`` writes the file anew.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from judge.steps import Sequence

__all__ = ["load", "save"]

DATA = Path(__file__).with_name("kafka.jsonl.gz")
Answers = list[Any]


def load() -> tuple[str, Mapping[str, Answers]]:
    """Kafka's version, and the answers by the sequence's name."""
    first, *lines = gzip.decompress(DATA.read_bytes()).decode().splitlines()
    return json.loads(first)["kafka"], dict(map(json.loads, lines))


def save(version: str, answered: Iterable[tuple[Sequence, Answers]]) -> None:
    lines = [json.dumps({"kafka": version}), *(json.dumps([asked.name, answers]) for asked, answers in answered)]
    DATA.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
