"""What is on disk after the same lives at Apache Kafka and at a broker of ours, as Kafka's DumpLogSegments reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from judge.asker import FIRST_NUMBER, Answers
from judge.brokers import Address, kafka, raylog
from judge.disk import batches_on_disk, files_of_lives
from judge.lives import lives
from judge.running import answers_at
from judge.steps import Sequence as Life
from judge.verdict import differences
from kit.demanded import java_left_out

from .test_dump_log import complaints

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.timeout(600),
    pytest.mark.skipif(java_left_out(), reason="java and mvn are not installed"),
]

SEED = 1
EACH = 8
KINDS = ("producer", "topic")


def after(
    start: Callable[[Path], AbstractContextManager[Address]], root: Path, wanted: Sequence[Life]
) -> dict[str, Answers]:
    root.mkdir()
    with start(root) as address:
        return answers_at(address, list(enumerate(wanted)))


def test_logs_are_kafkas(tmp_path: Path) -> None:
    """Where the answers were the same. Nothing is wrong with any file, indexes included."""
    wanted = [life for life in lives(SEED, EACH) if life.name.startswith(KINDS)]
    theirs, ours = after(kafka, tmp_path / "kafka", wanted), after(raylog, tmp_path / "ours", wanted)
    kept = files_of_lives(tmp_path / "ours", ".log", ".index", ".timeindex", ".snapshot")
    assert complaints(*kept) == []

    there, here = batches_on_disk(tmp_path / "kafka"), batches_on_disk(tmp_path / "ours")
    assert here.keys() == there.keys()
    of_topic = {f"l{FIRST_NUMBER + number}": life for number, life in enumerate(wanted)}
    judged = [topic for topic in there if not refuses_otherwise(of_topic[topic], ours, theirs)]
    assert len(judged) >= EACH
    assert {topic: here[topic] for topic in judged} == {topic: there[topic] for topic in judged}


def refuses_otherwise(life: Life, ours: dict[str, Answers], theirs: dict[str, Answers]) -> bool:
    """Whether anything was refused by one, and taken by the other, as was chosen for a few batches."""
    found = differences(life, ours[life.name], theirs[life.name])
    return any(each.path.endswith("error_code") and "none" in (each.ours, each.kafka) for each in found)
