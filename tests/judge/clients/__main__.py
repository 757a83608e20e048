"""Ask Java's client and ours the same, and tell every difference that nobody chose.

    cd tests && ../.venv/bin/python -m judge.clients    make judge-clients: Java is asked now, and reads what ours wrote
    … -m judge.clients --replay                         ours, compared with what Java's client said before
    … -m judge.clients --record                         make judge-clients-record: ask Java, and keep its answers

Ends with 1 where a difference is not chosen.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from judge.clients import kept
from judge.clients.asked import all_questions, compare, read_by_java
from judge.clients.java import java_client
from kit.kafka_java import KAFKA_4


def main() -> int:
    parser = argparse.ArgumentParser(prog="judge.clients")
    parser.add_argument("--replay", action="store_true", help="compare with the answers that were kept")
    parser.add_argument("--record", action="store_true", help="ask Java's client, and keep its answers")
    parser.add_argument("--seed", type=int, help="ask under another seed")
    given = parser.parse_args()
    questions = all_questions() if given.seed is None else all_questions(given.seed)
    begun = time.monotonic()
    found = []
    if given.replay:
        _, answers = kept.load(questions)
    else:
        with java_client() as java:
            answers = java.ask_all(questions)
            if not given.record:
                found += read_by_java(questions, java)
    if given.record:
        kept.save(KAFKA_4.version, questions, answers)
        return 0
    asked = time.monotonic()
    found += compare(questions, answers)
    wrong = [each for each in found if not each.choice]
    for each in wrong:
        print(f"{each.question}: {each.what}")
    for choice, count in Counter(each.choice for each in found if each.choice).items():
        print(f"{count} times: {choice.difference}")
    seconds = f"Java {asked - begun:.0f} s, ours {time.monotonic() - asked:.0f} s"
    print(f"{len(questions)} questions ({seconds}): {len(wrong)} differences, {len(found) - len(wrong)} chosen")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
