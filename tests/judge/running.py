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
from judge.asked import makes_what_others_name
from judge.asker import Answers, Asker
from judge.brokers import Address, kafka, raylog
from judge.judgement import judge

__all__ = ["answers_at", "kafka_answers", "raylog_answers", "side_by_side"]

LANES = 6
AGAIN = 100_000
"""More than there are sequences: the number of one that is asked a second time."""
MEMORY = Path("/dev/shm")
ROOT = MEMORY if MEMORY.is_dir() else None
"""For the brokers' data: thousands of topics are made, and each change of metadata waits for Kafka's disk."""
Numbered = tuple[int, steps.Sequence]


def kafka_answers(wanted: Sequence[steps.Sequence]) -> dict[str, Answers]:
    """The answers of one Kafka broker, by the sequences' names. What makes a thing that others name is asked alone."""
    with TemporaryDirectory(dir=ROOT) as root, kafka(Path(root)) as address, ThreadPoolExecutor(LANES) as pool:
        with Asker(address) as asker:
            asker.prepare(LANES)
        alone, others = [], []
        for number, each in enumerate(wanted):
            (alone if any(map(makes_what_others_name, each.steps)) else others).append((number, each))
        lanes = [pool.submit(_ask, address, others[lane::LANES], lane) for lane in range(LANES)]
        answers = {name: answers for lane in lanes for name, answers in lane.result().items()}
        return answers | _ask(address, alone, 0)


def raylog_answers(
    wanted: Sequence[steps.Sequence], expected: Mapping[str, Answers], *, jobs: int = 3
) -> dict[str, Answers]:
    """The answers of ``jobs`` brokers of ours, each in a process of its own; ``expected`` are Kafka's. More than there
    are processors: some wait for a clock.
    """
    numbered = list(enumerate(wanted))
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        parts = [numbered[job::jobs] for job in range(jobs)]
        asked = [pool.submit(_raylog, part, {each.name: expected[each.name] for _, each in part}) for part in parts]
        return {name: answers for part in asked for name, answers in part.result().items()}


def _raylog(wanted: Sequence[Numbered], expected: Mapping[str, Answers]) -> dict[str, Answers]:
    logging.getLogger("raylog").setLevel(logging.ERROR)  # malformed requests are many, and warned of
    with TemporaryDirectory(dir=ROOT) as root, raylog(Path(root)) as address:
        return answers_at(address, wanted, expected)


def answers_at(
    address: Address, wanted: Sequence[Numbered], expected: Mapping[str, Answers] | None = None
) -> dict[str, Answers]:
    """The answers of a broker that nobody has asked yet."""
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
                if expected is not None and _may_be_overtaken(each) and judge([each], found, expected).unexplained:
                    found[each.name] = asker.run(number + AGAIN, each, expected[each.name])
            except Exception as error:
                error.add_note(f"in {each.name}")
                raise
    return found


def _may_be_overtaken(sequence: steps.Sequence) -> bool:
    """Whether it hangs on which of several connections' requests is taken in first. Ours has a thread for each, and
    nothing tells that it has taken in a request whose answer waits: on a busy machine a later one may overtake it.
    """
    return any(step.waits for step in sequence.steps)


@contextmanager
def side_by_side() -> Iterator[Callable[[steps.Sequence], tuple[dict[str, Answers], dict[str, Answers]]]]:
    """Asks a broker of each kind the same sequence again and again."""
    with TemporaryDirectory(dir=ROOT) as mine, TemporaryDirectory(dir=ROOT) as theirs, ExitStack() as stack:
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
