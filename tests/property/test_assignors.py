"""Assignments are complete, disjoint and balanced, and the sticky one takes away as little as any balanced one must."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product

from hypothesis import example, given, settings
from hypothesis import strategies as st

from raylog.coordination.groups.assignors import Assignment, Assignor, Subscriber, assign
from raylog.protocol.ids import MemberId, PartitionIndex, TopicName, TopicPartition

TOPICS = tuple(TopicName(name) for name in "abcd")
MEMBERS = tuple(MemberId(f"m{n}") for n in range(6))

counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9))
wishes = st.frozensets(st.sampled_from(TOPICS))
claims = st.lists(
    st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 9).map(PartitionIndex)), max_size=12, unique=True
).map(tuple)
groups = st.dictionaries(st.sampled_from(MEMBERS), st.builds(Subscriber, wishes, claims))


@st.composite
def uniform_groups(draw: st.DrawFn) -> tuple[dict[MemberId, Subscriber], dict[TopicName, int]]:
    """Members with one subscription, each partition owned by one of them or by nobody."""
    partitions = {topic: draw(st.integers(1, 7)) for topic in draw(st.sets(st.sampled_from(TOPICS), min_size=1))}
    names = MEMBERS[: draw(st.integers(1, len(MEMBERS)))]
    owned: dict[MemberId, list[TopicPartition]] = {name: [] for name in names}
    for topic, count in partitions.items():
        for index in range(count):
            owner = draw(st.sampled_from((*names, None)))
            if owner is not None:
                owned[owner].append(TopicPartition(topic, PartitionIndex(index)))
    topics = frozenset(partitions)
    return {name: Subscriber(topics, tuple(owned[name])) for name in names}, partitions


def wanted(members: Mapping[MemberId, Subscriber], partitions: Mapping[TopicName, int]) -> set[TopicPartition]:
    topics = {topic for member in members.values() for topic in member.topics}
    return {TopicPartition(t, PartitionIndex(i)) for t in topics for i in range(partitions.get(t, 0))}


def loads(assignment: Assignment) -> dict[MemberId, int]:
    return {member: len(tps) for member, tps in assignment.items()}


def reachable(start: MemberId, assignment: Assignment, members: Mapping[MemberId, Subscriber]) -> set[MemberId]:
    """To whom a partition can be passed on from ``start``, each of the way giving one and taking one."""
    seen, todo = {start}, [start]
    while todo:
        topics = {tp.topic for tp in assignment[todo.pop()]}
        more = {name for name, member in members.items() if member.topics & topics} - seen
        seen |= more
        todo += more
    return seen


@given(st.sampled_from(Assignor), groups, counts)
def test_each_wanted_partition_goes_to_one_who_wants_it(
    assignor: Assignor, members: dict[MemberId, Subscriber], partitions: dict[TopicName, int]
) -> None:
    found = assign(assignor, members, partitions)
    given_out = [tp for tps in found.values() for tp in tps]
    assert set(found) == set(members)
    assert Counter(given_out) == Counter(wanted(members, partitions))
    assert all(tp.topic in members[member].topics for member, tps in found.items() for tp in tps)
    assert found == assign(assignor, dict(reversed(members.items())), dict(reversed(partitions.items())))


@given(groups, counts)
def test_ranges_are_consecutive_and_differ_by_one_within_a_topic(
    members: dict[MemberId, Subscriber], partitions: dict[TopicName, int]
) -> None:
    found = assign(Assignor.RANGE, members, partitions)
    for topic in partitions:
        shares = [
            [tp.partition for tp in found[m] if tp.topic == topic]
            for m in sorted(members)
            if topic in members[m].topics
        ]
        assert [p for share in shares for p in share] == (list(range(partitions[topic])) if shares else [])
        sizes = [len(share) for share in shares]
        assert sizes == sorted(sizes, reverse=True)
        assert not sizes or sizes[0] - sizes[-1] <= 1


@given(groups, counts)
def test_the_sticky_assignment_cannot_be_balanced_further(
    members: dict[MemberId, Subscriber], partitions: dict[TopicName, int]
) -> None:
    found = assign(Assignor.STICKY, members, partitions)
    load = loads(found)
    for start in members:
        assert all(load[start] - load[end] < 2 for end in reachable(start, found, members))


@given(uniform_groups())
def test_with_equal_subscriptions_it_is_balanced_within_one_and_takes_away_the_least(
    group: tuple[dict[MemberId, Subscriber], dict[TopicName, int]],
) -> None:
    members, partitions = group
    found = assign(Assignor.STICKY, members, partitions)
    load = loads(found)
    assert max(load.values()) - min(load.values()) <= 1
    share, rest = divmod(sum(partitions.values()), len(members))
    owned = sorted((len(member.owned) for member in members.values()), reverse=True)
    bound = sum(max(0, n - share - (place < rest)) for place, n in enumerate(owned))
    taken = sum(len(set(member.owned) - set(found[name])) for name, member in members.items())
    assert taken == bound


@st.composite
def small_groups(draw: st.DrawFn) -> tuple[dict[MemberId, Subscriber], dict[TopicName, int]]:
    """So small that all assignments can be looked at."""
    partitions = {topic: draw(st.integers(1, 3)) for topic in TOPICS[: draw(st.integers(1, 3))]}
    names = MEMBERS[: draw(st.integers(2, 3))]
    wishes = {name: draw(st.frozensets(st.sampled_from(sorted(partitions)), min_size=1)) for name in names}
    owned: dict[MemberId, list[TopicPartition]] = {name: [] for name in names}
    for topic, count in partitions.items():
        able = [name for name in names if topic in wishes[name]]
        for index in range(count):
            owner = draw(st.sampled_from([*able, None]))
            if owner is not None:
                owned[owner].append(TopicPartition(topic, PartitionIndex(index)))
    return {name: Subscriber(wishes[name], tuple(owned[name])) for name in names}, partitions


@settings(max_examples=400)
@given(small_groups())
@example(
    (
        {
            MemberId("m0"): Subscriber(frozenset(TOPICS[1:3]), (TopicPartition(TOPICS[2], PartitionIndex(0)),)),
            MemberId("m1"): Subscriber(frozenset(TOPICS[0:2])),
            MemberId("m2"): Subscriber(frozenset((TOPICS[0], TOPICS[2]))),
        },
        dict.fromkeys(TOPICS[:3], 1),
    )
)
def test_no_assignment_as_balanced_takes_away_less(
    group: tuple[dict[MemberId, Subscriber], dict[TopicName, int]],
) -> None:
    members, partitions = group
    found = assign(Assignor.STICKY, members, partitions)
    owner_before = {tp: name for name, member in members.items() for tp in member.owned}
    owner_now = {tp: name for name, tps in found.items() for tp in tps}
    balance = sorted(loads(found).values())

    def taken(owners: Mapping[TopicPartition, MemberId]) -> int:
        return sum(owners[tp] != before for tp, before in owner_before.items())

    tps = sorted(owner_now)
    able = [[name for name in members if tp.topic in members[name].topics] for tp in tps]
    for owners in product(*able):
        if sorted(owners.count(name) for name in members) == balance:
            assert taken(owner_now) <= taken(dict(zip(tps, owners, strict=True)))


@given(groups, counts)
def test_what_is_assigned_stays_when_nothing_changes(
    members: dict[MemberId, Subscriber], partitions: dict[TopicName, int]
) -> None:
    found = assign(Assignor.STICKY, members, partitions)
    again = {name: Subscriber(member.topics, found[name]) for name, member in members.items()}
    assert assign(Assignor.STICKY, again, partitions) == found


@given(uniform_groups())
def test_who_leaves_takes_nothing_from_those_who_stay(
    group: tuple[dict[MemberId, Subscriber], dict[TopicName, int]],
) -> None:
    members, partitions = group
    before = assign(Assignor.STICKY, members, partitions)
    for gone, (name, member) in product(members, members.items()):
        if gone == name or len(members) == 1:
            continue
        left = {n: Subscriber(m.topics, before[n]) for n, m in members.items() if n != gone}
        after = assign(Assignor.STICKY, left, partitions)
        assert set(before[name]) <= set(after[name]), member
