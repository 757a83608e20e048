"""Sequences at brokers of either kind, side by side: each is at home in names of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from judge import steps
from judge.asker import Answers, Asker
from judge.brokers import Address, kafka, raylog

__all__ = ["kafka_answers", "raylog_answers", "side_by_side"]

LANES = 6
Numbered = tuple[int, steps.Sequence]


def kafka_answers(wanted: Sequence[steps.Sequence]) -> dict[str, Answers]:
    """The answers of one Kafka broker, by the sequences' names."""
    with TemporaryDirectory() as root, kafka(Path(root)) as address, ThreadPoolExecutor(LANES) as pool:
        with Asker(address) as asker:
            asker.prepare(LANES)
        numbered = list(enumerate(wanted))
        lanes = [pool.submit(_ask, address, numbered[lane::LANES], lane) for lane in range(LANES)]
        return {name: answers for lane in lanes for name, answers in lane.result().items()}


def raylog_answers(
    wanted: Sequence[steps.Sequence], expected: Mapping[str, Answers], *, jobs: int = 2
) -> dict[str, Answers]:
    """The answers of ``jobs`` brokers of ours, each in a process of its own; ``expected`` are Kafka's."""
    numbered = list(enumerate(wanted))
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        parts = [numbered[job::jobs] for job in range(jobs)]
        asked = [pool.submit(_raylog, part, {each.name: expected[each.name] for _, each in part}) for part in parts]
        return {name: answers for part in asked for name, answers in part.result().items()}


def _raylog(wanted: Sequence[Numbered], expected: Mapping[str, Answers]) -> dict[str, Answers]:
    logging.getLogger("raylog").setLevel(logging.ERROR)  # malformed requests are many, and warned of
    with TemporaryDirectory() as root, raylog(Path(root)) as address:
        with Asker(address) as asker:
            asker.prepare()
        return _ask(address, wanted, 0, expected)


def _ask(
    address: Address, wanted: Sequence[Numbered], lane: int, expected: Mapping[str, Answers] | None = None
) -> dict[str, Answers]:
    found = {}
    with Asker(address, lane) as asker:
        asker.look()
        for number, each in wanted:
            try:
                found[each.name] = asker.run(number, each, expected[each.name] if expected is not None else None)
            except Exception as error:
                error.add_note(f"in {each.name}")
                raise
    return found


@contextmanager
def side_by_side() -> Iterator[Callable[[steps.Sequence], tuple[dict[str, Answers], dict[str, Answers]]]]:
    """Asks a broker of each kind the same sequence again and again."""
    with TemporaryDirectory() as mine, TemporaryDirectory() as theirs, ExitStack() as stack:
        askers = [
            stack.enter_context(Asker(stack.enter_context(start(Path(root)))))
            for start, root in ((raylog, mine), (kafka, theirs))
        ]
        for asker in askers:
            asker.prepare()
        numbers = count()

        def ask_both(sequence: steps.Sequence) -> tuple[dict[str, Answers], dict[str, Answers]]:
            number = next(numbers)
            expected = askers[1].run(number, sequence)
            return {sequence.name: askers[0].run(number, sequence, expected)}, {sequence.name: expected}

        yield ask_both
