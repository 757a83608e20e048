"""Ask Kafka and raylog the same, and tell every difference that nobody chose.

    cd tests && ../.venv/bin/python -m judge            both, everything: make judge
    … -m judge --replay [--api NAME] [--only NAMES]     ours, compared with what Kafka answered when it was recorded
    … -m judge --record                                 ask Kafka, and keep its answers: make judge-record
    … -m judge --replay --open [--api NAME]             list what differs now, of these APIs: make judge-open
    … -m judge --again                                  ask Kafka, and compare with what it answered before
    … -m judge --shortest NAME                          the fewest steps of a sequence that still differ
    … -m judge --three [--replay | --record]            three brokers of each, that are moved and killed
    … -m judge --proof                                  faults that are planted in our handlers are found

Ends with 1 where a difference is neither chosen nor listed, or a choice or a line of the list explains nothing any
more.
"""

from __future__ import annotations

import argparse
import sys
import time
from fnmatch import fnmatchcase

from judge import recorded
from judge.choices import Choice
from judge.judgement import Judgement, idle_choices, judge, known_open, reopen
from judge.planted import prove
from judge.running import kafka_answers, raylog_answers, side_by_side
from judge.steps import Sequence
from judge.three import kept as three
from judge.verdict import NAMES, differences, shortest
from kit.kafka_broker import KAFKA_VERSION


def main() -> int:
    parser = argparse.ArgumentParser(prog="judge")
    parser.add_argument("--replay", action="store_true", help="compare with the answers that were recorded")
    parser.add_argument("--record", action="store_true", help="ask Kafka, and keep its answers")
    parser.add_argument("--open", action="store_true", help="list what differs now")
    parser.add_argument("--api", nargs="*", default=[], help="sequences with these APIs, differences of them")
    parser.add_argument("--only", default="*", help="sequences of these names")
    parser.add_argument("--again", action="store_true", help="compare Kafka with itself")
    parser.add_argument("--shortest", metavar="NAME", help="shrink a sequence")
    parser.add_argument("--three", action="store_true", help="three brokers that are moved and killed")
    parser.add_argument("--proof", action="store_true", help="plant faults in our handlers")
    given = parser.parse_args()
    if given.proof:
        return prove()
    if given.three:
        return three.main(replays=given.replay, records=given.record)
    everything = list(recorded.recorded_sequences())
    if given.shortest:
        return _shrink(next(each for each in everything if each.name == given.shortest))
    wanted = [each for each in everything if fnmatchcase(each.name, given.only) and _asks(each, given.api)]
    if given.again:
        return _compare_itself(wanted)
    begun = time.monotonic()
    theirs = recorded.load(wanted)[1] if given.replay else kafka_answers(wanted)
    if given.record:
        recorded.save(KAFKA_VERSION, everything, theirs)
        return 0
    asked = time.monotonic()
    found = judge(wanted, raylog_answers(wanted, theirs), theirs)
    print(f"{len(wanted)} sequences: Kafka {asked - begun:.0f} s, raylog {time.monotonic() - asked:.0f} s", flush=True)
    whole = given.only == "*" and not given.api
    idle = idle_choices(found.used) if whole else []
    return _tell(found, given.api, whole=whole, idle=idle, reopens=given.open)


def _asks(sequence: Sequence, apis: list[str]) -> bool:
    return not apis or any(NAMES[step.api] in apis for step in sequence.steps)


def _tell(found: Judgement, apis: list[str], *, whole: bool, idle: list[Choice], reopens: bool) -> int:
    """One line for each kind of difference that nobody chose."""
    listed = known_open()
    unexplained = {kind: names for kind, names in found.unexplained.items() if not apis or kind.api in apis}
    for kind, names in sorted(unexplained.items()):
        print(f"{'open' if kind in listed else 'NEW'}: {kind}: {len(names)} times, as {'; '.join(names[:3])}")
    gone = {kind for kind in listed - set(unexplained) if kind.api in apis} if apis else listed - set(unexplained)
    if not (whole or apis):
        gone = set()
    for kind in sorted(gone):
        print(f"GONE, but listed: {kind}")
    for choice in idle:
        print(f"a choice explains nothing any more: {choice.difference}")
    if reopens:
        reopen(unexplained, gone=gone)
    new = set(unexplained) - listed
    print(f"{len(unexplained)} kinds of differences, {len(new)} new; {len(gone)} listed that are gone")
    return 1 if new or gone or idle else 0


def _compare_itself(wanted: list[Sequence]) -> int:
    """What hangs on chance or on a clock must not be compared at all."""
    before = recorded.load(wanted)[1]
    now = kafka_answers(wanted)
    found = [(each.name, one) for each in wanted for one in differences(each, now[each.name], before[each.name])]
    for name, one in found:
        print(f"{name}, step {one.step}: {one.api} | {one.path} | {one.ours} | before: {one.kafka}")
    print(f"{len(wanted)} sequences, {len({name for name, _ in found})} were answered in another way than before")
    return 1 if found else 0


def _shrink(sequence: Sequence) -> int:
    with side_by_side() as both:
        found = shortest(sequence, lambda shorter: bool(judge([shorter], *both(shorter)).unexplained))
        ours, theirs = both(found)
    for step, one, other in zip(found.steps, ours[found.name], theirs[found.name], strict=True):
        print(f"{step.client}: {NAMES[step.api]} v{step.version} {step.tree}\n  ours  {one}\n  Kafka {other}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
