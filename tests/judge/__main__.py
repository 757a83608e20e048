"""Ask Kafka and raylog everything, and tell every difference that nobody chose: ``make judge``.

    PYTHONPATH=tests .venv/bin/python -m judge [--seeds 1 2 3] [--lives 35] [--only NAME*] [--record]

``--record`` keeps Kafka's answers for the tests that have no Java. Ends with 1 where a difference is not explained, or
an explanation explains nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from judge import recorded
from judge.asker import Asker
from judge.brokers import Address, kafka, raylog
from judge.cases import edge_cases
from judge.choices import CHOICES, Choice, chosen, unexplained
from judge.lives import lives
from judge.steps import Sequence
from judge.verdict import Difference, differences
from kit.kafka_broker import KAFKA_VERSION

Answers = list[Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="judge")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--lives", type=int, default=35, help="sequences of each kind under each seed")
    parser.add_argument("--only", default="*", help="names of sequences")
    parser.add_argument("--record", action="store_true", help="keep Kafka's answers for the tests")
    given = parser.parse_args()
    wanted = [
        each
        for each in (*edge_cases(), *(life for seed in given.seeds for life in lives(seed, given.lives)))
        if fnmatchcase(each.name, given.only)
    ]
    ours, theirs = ask_all(raylog, wanted), ask_all(kafka, wanted)
    if given.record:
        recorded.save(KAFKA_VERSION, zip(wanted, theirs, strict=True))
    found = [
        (sequence.name, list(differences(one, other)))
        for sequence, one, other in zip(wanted, ours, theirs, strict=True)
    ]
    return tell(found, whole=given.only == "*")


def ask_all(broker: Callable[[Path], AbstractContextManager[Address]], wanted: Iterable[Sequence]) -> list[Answers]:
    """The answers of a new broker."""
    with TemporaryDirectory() as root, broker(Path(root)) as address, Asker(address) as asker:
        asker.prepare()
        begun = time.monotonic()
        found = [asker.run(number, sequence) for number, sequence in enumerate(wanted)]
        print(f"{broker.__name__}: {len(found)} sequences in {time.monotonic() - begun:.0f} s", flush=True)
    return found


def tell(found: list[tuple[str, list[Difference]]], *, whole: bool) -> int:
    """One line for each kind of difference that nobody chose."""
    open_: dict[tuple[str, str, str, str], list[str]] = {}
    used: set[Choice] = set()
    for name, each in found:
        used |= chosen(name, each)
        for difference in unexplained(name, each):
            api, _, rest = name.partition(" ")
            kind = (api, difference.path, str(difference.ours)[:60], str(difference.kafka)[:60])
            open_.setdefault(kind, []).append(rest)
    for (api, path, our, their), names in sorted(open_.items()):
        print(f"{api}: {path}: {our!r}, Kafka {their!r}: {len(names)} times, {', '.join(names[:3])}")
    idle = [choice for choice in CHOICES if choice not in used] if whole else []
    for choice in idle:
        print(f"a choice explains nothing any more: {choice.difference}")
    print(f"{len(found)} sequences, {sum(bool(each) for _, each in found)} differ, {len(open_)} kinds unexplained")
    return 1 if open_ or idle else 0


if __name__ == "__main__":
    sys.exit(main())
