"""Where a record goes: by the hash of its key, by turns, or by chance."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pyarrow as pa

from judge.clients.question import Answer, Finding, Question, decoded, encoded
from raylog.client.batches.partitioner import KEY_HASHES, KeyPartitioner, StickyPartitioner, Turns, murmur2
from raylog.client.batches.row_partitions import hashed_keys, partitions_by_key

__all__ = ["choice_findings", "key_findings", "questions", "turn_findings"]

CHUNKS, KEYS, COUNTS, TOPICS = 60, 60, 3, 60
ALL_COUNTS = (*range(1, 66), 127, 128, 129, 255, 256, 257, 999, 1_000, 1_023, 1_024, 4_096, 9_999, 10_000)


def questions(seed: int) -> Iterator[Question]:
    """Some thousand keys of every length, high bytes, none and null among them, over 1 to 10,000 partitions; topics
    some of whose partitions have no leader."""
    chance = random.Random(f"keys {seed}")
    yield _question("keys of each length", [chance.randbytes(size) for size in range(40)], ALL_COUNTS)
    edges = [b"", None, *(bytes([byte]) * size for byte in (0x00, 0x7F, 0x80, 0xFF) for size in range(1, 10))]
    yield _question("keys of edge bytes", edges, ALL_COUNTS)
    for chunk in range(CHUNKS):
        keys = [_key(chance) for _ in range(KEYS)]
        yield _question(f"keys {chunk}", keys, [chance.randint(1, 10_000) for _ in range(COUNTS)])
    for number in range(TOPICS):
        count = chance.randint(1, 12)
        changes = [_led(chance, count) for _ in range(5)]
        yield Question(
            f"turns {number}", "turns", {"led": [led for led in changes for _ in range(chance.randint(1, 20))]}
        )
        yield Question(f"choices {number}", "choices", {"led": changes[0]})


def key_findings(question: Question, java: Answer) -> Iterator[Finding]:
    """Ours hashes single records, columns, and has a table of recent keys."""
    keys = [decoded(key) for key in question.inputs["keys"]]
    rule = KEY_HASHES["murmur2_random"]
    for key, told in zip(keys, java, strict=True):
        if key is None:
            if rule.null is not None or told:
                yield Finding(question.name, "a key that is null has a hash")
        elif not told or told[0] & 0xFFFFFFFF != murmur2(key):
            yield Finding(question.name, f"the hash of {key!r} is {murmur2(key)}, Java's {told[:1]}")
    by_record = KeyPartitioner(rule.of, kept_keys=100)
    columns = hashed_keys(pa.array(keys, pa.binary()), rule.null, rule.empty)
    for place, count in enumerate(question.inputs["counts"], 1):
        theirs = [told[place] if told else -1 for told in java]
        yield from _compared(question, f"records over {count}", _single(by_record, keys, count), theirs)
        found = partitions_by_key(columns, KeyPartitioner(rule.of), count, keyless=-1).tolist()
        yield from _compared(question, f"columns over {count}", found, theirs)


def turn_findings(question: Question, java: Answer) -> Iterator[Finding]:
    """``partitioner=roundrobin``, and Java's RoundRobinPartitioner."""
    turns = Turns()
    ours = [turns.partition(_numbers(led), len(led)) for led in question.inputs["led"]]
    yield from _compared(question, "by turns", ours, java)


def choice_findings(question: Question, java: Answer) -> Iterator[Finding]:
    """What our sticky partitioner may choose, and what Java's did among so many draws that none is missing."""
    led = question.inputs["led"]
    ours: set[int] = set()
    for drawn in range(len(led)):
        sticky = StickyPartitioner(drawn.__mod__, switch_bytes=1)
        ours.add(sticky.partition(1, _numbers(led), len(led)))
    yield from _compared(question, "by chance", sorted(ours), java)


def _numbers(led: list[bool]) -> tuple[int, ...]:
    return tuple(number for number, is_led in enumerate(led) if is_led)


def _led(chance: random.Random, count: int) -> list[bool]:
    share = chance.choice((0, 0.3, 0.8, 1))
    return [chance.random() < share for _ in range(count)]


def _single(partitioner: KeyPartitioner, keys: Iterable[bytes | None], count: int) -> list[int]:
    return [-1 if key is None else partitioner.partition(key, count) for key in keys]


def _compared(question: Question, what: str, ours: list[int], theirs: list[int]) -> Iterator[Finding]:
    if ours != theirs:
        yield Finding(question.name, f"{what}: partitions {ours}, Java's {theirs}")


def _key(chance: random.Random) -> bytes | None:
    size = chance.choice((chance.randint(1, 8), chance.randint(0, 40), chance.randint(0, 1_000)))
    match chance.randrange(8):
        case 0:
            return None
        case 1:
            return bytes(chance.randrange(0x80, 0x100) for _ in range(size))
        case 2:
            return f"user-{chance.randrange(100_000)}".encode()
        case _:
            return chance.randbytes(size)


def _question(name: str, keys: Iterable[bytes | None], counts: Iterable[int]) -> Question:
    return Question(name, "keys", {"keys": [encoded(key) for key in keys], "counts": list(counts)})
