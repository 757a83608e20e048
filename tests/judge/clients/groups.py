"""Who of a group reads which partitions: our assignors against those of Java's consumers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, zip_longest
from typing import Any

from judge.clients.question import Answer, Choice, Finding, Question
from raylog.coordination.groups.assignors import Assignment, Assignor, Subscriber, assign
from raylog.protocol.ids import MemberId, PartitionIndex, TopicName, TopicPartition

__all__ = ["CHOICES", "findings", "questions"]

GROUPS = 500
RACK_NAMES = ("r1", "r2", "r3")
Owners = dict[TopicPartition, str]
RACKS = Choice(
    "Ranges take no notice of racks; Java's put partitions where a reader's rack has a replica (KIP-881).",
    "The registries of members hold none. A reader with a rack reads from the replica there, where there is one.",
)
STRANGERS = Choice(
    "A member gets no topic that it does not want; Java's sticky assignor may give one back that it had.",
    "It does not read it: nobody does, then.",
)
PRICE = Choice(
    "Balance comes before what members had; Java's assignors may stop before there is balance.",
    "So it is with the same members whatever was before, and no member has more than it must.",
)
CHOICES = (RACKS, STRANGERS, PRICE)
"""Lines of docs/compatibility.md."""


def questions(seed: int) -> Iterator[Question]:
    """Groups as they are after members came and went, topics grew, were made or deleted, and members changed what they
    read; asked of each of Java's assignors."""
    chance = random.Random(f"groups {seed}")
    for number in range(GROUPS):
        group = _group(chance)
        for assignor in ("range", "roundrobin", "sticky", "cooperative-sticky"):
            yield Question(f"group {number}: {assignor}", "assign", {"assignor": assignor, **group})
        if any(member["rack"] for member in group["members"].values()):
            without = {id: {**member, "rack": None} for id, member in group["members"].items()}
            yield Question(f"group {number}: no racks", "assign", {**group, "assignor": "range", "members": without})


def findings(question: Question, java: Answer) -> Iterator[Finding]:
    """Ranges are the same. Ours that is sticky is as balanced and as sticky as any of Java's."""
    members = question.inputs["members"]
    theirs = _owners({id: [(t, p) for t in topics for p in topics[t]] for id, topics in java.items()})
    subscribers = _subscribers(members)
    partitions = {TopicName(topic): len(racks) for topic, racks in question.inputs["topics"].items()}
    if question.inputs["assignor"] == "range":
        yield from _ranges(question, theirs, partitions)
        return
    found = assign(Assignor.STICKY, subscribers, partitions)
    ours = _owners(found)
    if strangers := [tp for tp, owner in theirs.items() if tp.topic not in members[owner]["topics"]]:
        yield Finding(question.name, f"Java gives {strangers} to members that do not want them", STRANGERS)
        return
    if ours.keys() != theirs.keys():
        yield Finding(question.name, f"{ours.keys() ^ theirs.keys()} are read by one side only")
        return
    our_loads, their_loads = _loads(ours, members), _loads(theirs, members)
    if not _is_as_balanced(our_loads, their_loads):
        yield Finding(question.name, f"members have {our_loads} partitions, Java's {their_loads}")
    our_moves, their_moves = _moves(subscribers, ours, partitions), _moves(subscribers, theirs, partitions)
    if our_moves > their_moves:
        yield Finding(
            question.name,
            f"{our_moves} partitions move, Java's {their_moves}; loads {our_loads}, Java's {their_loads}",
            PRICE if our_loads != their_loads else None,
        )


def _ranges(question: Question, theirs: Owners, partitions: Mapping[TopicName, int]) -> Iterator[Finding]:
    """Java's static members come first, in order of their instances; ours are in order of their ids."""
    members = question.inputs["members"]
    in_order = sorted(members, key=lambda id: (not members[id]["instance"], members[id]["instance"] or id))
    named = {MemberId(f"{place:04}"): id for place, id in enumerate(in_order)}
    found = assign(
        Assignor.RANGE,
        {name: Subscriber(frozenset(map(TopicName, members[id]["topics"]))) for name, id in named.items()},
        partitions,
    )
    ours = {tp: named[MemberId(owner)] for tp, owner in _owners(found).items()}
    if ours == theirs:
        return
    is_by_racks = any(member["rack"] for member in members.values()) and _shares(ours) == _shares(theirs)
    yield Finding(question.name, f"ranges {ours}, Java's {theirs}", RACKS if is_by_racks else None)


def _shares(owners: Owners) -> list[tuple[str, int]]:
    """Of each topic how many partitions its readers have."""
    shares = Counter((tp.topic, owner) for tp, owner in owners.items())
    return sorted((topic, count) for (topic, _), count in shares.items())


def _owners(assignment: Assignment | Mapping[str, Sequence[Sequence[Any]]]) -> Owners:
    found: Owners = {}
    for member, tps in assignment.items():
        for topic, partition in tps:
            tp = TopicPartition(TopicName(topic), PartitionIndex(partition))
            assert tp not in found, f"{tp} has two owners"
            found[tp] = member
    return found


def _loads(owners: Owners, members: Iterable[str]) -> list[int]:
    loads = Counter(owners.values())
    return sorted((loads[member] for member in members), reverse=True)


def _is_as_balanced(ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """However many of the most loaded are taken together, ours have no more."""
    return all(one <= other for one, other in zip_longest(accumulate(ours), accumulate(theirs)))


def _moves(subscribers: Mapping[MemberId, Subscriber], owners: Owners, partitions: Mapping[TopicName, int]) -> int:
    """How many partitions leave a member that could keep them."""
    return sum(
        owners[tp] != member
        for member, subscriber in subscribers.items()
        for tp in subscriber.owned
        if tp.topic in subscriber.topics and tp.partition < partitions.get(tp.topic, 0)
    )


def _subscribers(members: Mapping[str, Any]) -> dict[MemberId, Subscriber]:
    """What each member owned: of two that claim it, who has the newer generation; nobody if neither has. Our members
    read it from the one assignment that there is, where nobody can claim anything."""
    claims: dict[TopicPartition, list[tuple[int, str]]] = {}
    for id, member in members.items():
        for topic, partition in member["owned"]:
            tp = TopicPartition(TopicName(topic), PartitionIndex(partition))
            claims.setdefault(tp, []).append((member["generation"], id))
    owned: dict[str, list[TopicPartition]] = {id: [] for id in members}
    for tp, claimants in sorted(claims.items()):
        generation, id = max(claimants)
        if [each[0] for each in claimants].count(generation) == 1:
            owned[id].append(tp)
    return {
        MemberId(id): Subscriber(frozenset(map(TopicName, member["topics"])), tuple(owned[id]))
        for id, member in members.items()
    }


# --- groups ---


def _group(chance: random.Random) -> dict[str, Any]:
    size = chance.choice((1, 2, 3, chance.randint(2, 8), chance.randint(8, 24)))
    ids = [f"m-{chance.randrange(1 << 24):06x}" for _ in range(size)]
    counts = {
        f"t{number}": chance.choice((1, 2, 3, 6, chance.randint(0, 14))) for number in range(chance.randint(1, 6))
    }
    is_equal = chance.random() < 0.5
    topics = {id: sorted(counts) if is_equal else _some(chance, counts) for id in ids}
    owned = _past(chance, ids, counts, topics)
    has_racks, has_instances = chance.random() < 0.25, chance.random() < 0.25
    members: dict[str, Any] = {}
    for id in ids:
        members[id] = {
            "topics": topics[id],
            "owned": [[*tp] for tp in owned.get(id, ())],
            "generation": chance.choice((7, 7, 7, 6)) if id in owned else -1,
            "rack": chance.choice(RACK_NAMES) if has_racks else None,
            "instance": f"i-{chance.randrange(1 << 16):04x}" if has_instances and chance.random() < 0.6 else None,
        }
    if owned and chance.random() < 0.2:
        _claim_others(chance, members)
    racks = {
        topic: [chance.sample(RACK_NAMES, chance.choice((1, 2, 2, 3))) if has_racks else ["r0"] for _ in range(count)]
        for topic, count in counts.items()
    }
    return {"topics": racks, "members": members}


def _some(chance: random.Random, topics: Iterable[str]) -> list[str]:
    found = [topic for topic in sorted(topics) if chance.random() < 0.6]
    return found or [min(topics)]


def _past(
    chance: random.Random, ids: Sequence[str], counts: Mapping[str, int], topics: Mapping[str, Sequence[str]]
) -> dict[str, list[tuple[str, int]]]:
    """What members owned: dealt evenly, or by chance, among those of now without newcomers, and some who have left."""
    kind = chance.choice(("none", "even", "even", "any", "any"))
    if kind == "none":
        return {}
    before = [id for id in ids if chance.random() < 0.8] + [f"gone {n}" for n in range(chance.randint(0, 3))]
    keeps_topics = chance.random() < 0.7
    wished = {id: topics[id] if id in topics and keeps_topics else _some(chance, counts) for id in before}
    had = {topic: count if chance.random() < 0.7 else chance.randint(0, count) for topic, count in counts.items()}
    had["deleted"] = chance.choice((0, 0, 3))
    owned: dict[str, list[tuple[str, int]]] = {id: [] for id in before}
    for topic, count in had.items():
        for partition in range(count):
            able = [id for id in before if topic in wished[id] or topic == "deleted"]
            if able:
                least = min(len(owned[id]) for id in able)
                fit = [id for id in able if len(owned[id]) == least] if kind == "even" else able
                owned[chance.choice(fit)].append((topic, partition))
    return {id: tps for id, tps in owned.items() if id in topics}


def _claim_others(chance: random.Random, members: dict[str, Any]) -> None:
    """One member claims what others own, too: it missed a generation or two, or nobody knows how."""
    claimant = chance.choice([id for id in members if members[id]["generation"] >= 0] or [*members])
    if members[claimant]["generation"] < 0:
        return
    others = [tp for id, member in members.items() if id != claimant for tp in member["owned"]]
    members[claimant]["owned"] += chance.sample(others, min(len(others), chance.randint(1, 4)))
