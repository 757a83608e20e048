"""◆ Who reads which partitions of a group: pure functions from members and topics to an assignment.

Each partition of a topic that somebody subscribes to goes to exactly one of its subscribers.

``assign_range`` is Algorithm 1 of the paper (Kreps et al., "Kafka: a Distributed Messaging System for Log Processing",
2011, section 3.2): every topic for itself, in ranges. ``assign_sticky`` balances over all topics and leaves where it is
whatever can stay:

* *Balanced.* No partition can be passed on, from member to member along subscriptions, from one that has at least two
  more than the last. With equal subscriptions: no two members differ by more than one.
* *Sticky.* It takes away as few partitions as any assignment must that is as balanced. With equal subscriptions, of
  n members and p partitions, that is what a member owns above its share, which is p // n + 1 for the p % n members who
  own most, and p // n for the others.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapreplace
from itertools import chain
from typing import Any

from raylog.protocol.ids import MemberId, PartitionIndex, TopicName, TopicPartition

__all__ = ["Assignment", "Assignor", "Subscriber", "assign"]

Assignment = dict[MemberId, tuple[TopicPartition, ...]]
"""Per member, also of those that get nothing, its partitions in order."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """What a member wants, and what it has."""

    topics: frozenset[TopicName]
    owned: tuple[TopicPartition, ...] = ()
    """Under the assignment before; of two members that claim the same, the one whose id comes first keeps it."""


class Assignor(StrEnum):
    """Names of assignors, as partition.assignment.strategy takes them."""

    RANGE = "range"
    STICKY = "sticky"


def assign(
    assignor: Assignor, members: Mapping[MemberId, Subscriber], partitions: Mapping[TopicName, int]
) -> Assignment:
    """``partitions``: how many there are of each topic; one that is not in it does not exist (yet)."""
    match assignor:
        case Assignor.RANGE:
            return assign_range(members, partitions)
        case Assignor.STICKY:
            return assign_sticky(members, partitions)


def assign_range(members: Mapping[MemberId, Subscriber], partitions: Mapping[TopicName, int]) -> Assignment:
    """Of each topic, the members in order of their ids get ranges that differ by one at most, longer ones first."""
    found: dict[MemberId, list[TopicPartition]] = {member: [] for member in sorted(members)}
    for topic, subscribers in sorted(_subscribers(members, partitions).items()):
        share, rest = divmod(partitions[topic], len(subscribers))
        begin = 0
        for place, member in enumerate(subscribers):
            end = begin + share + (place < rest)
            found[member] += _partitions(topic, begin, end)
            begin = end
    return {member: tuple(tps) for member, tps in found.items()}


def assign_sticky(members: Mapping[MemberId, Subscriber], partitions: Mapping[TopicName, int]) -> Assignment:
    """See the module. The same arguments give the same assignment, in whatever order they come."""
    subscribers = _subscribers(members, partitions)
    kept = _Kept(members, subscribers, partitions)
    homeless = [tp for topic in subscribers for tp in _partitions(topic, 0, partitions[topic]) if tp not in kept.owner]
    for tp in sorted(homeless, key=lambda tp: (len(subscribers[tp.topic]), tp)):
        kept.give_to_least(tp)
    while kept.level():
        pass
    if len(set(map(tuple, subscribers.values()))) > 1:
        while kept.bring_back():
            pass
    return kept.assignment()


def _subscribers(
    members: Mapping[MemberId, Subscriber], partitions: Mapping[TopicName, int]
) -> dict[TopicName, list[MemberId]]:
    """The members that want each topic there is, in order; topics that nobody wants are left out."""
    found: dict[TopicName, list[MemberId]] = {}
    for member in sorted(members):
        for topic in members[member].topics:
            if partitions.get(topic, 0) > 0:
                found.setdefault(topic, []).append(member)
    return found


def _partitions(topic: TopicName, begin: int, end: int) -> Iterable[TopicPartition]:
    return (TopicPartition(topic, PartitionIndex(index)) for index in range(begin, end))


_MEMBER, _TOPIC, _LOAD = "member", "topic", "load"
_Node = tuple[str, Any]
_Edge = tuple[_Node, _Node, int]


def _cheaper_circle(edges: Sequence[_Edge]) -> list[_Node]:
    """The nodes, in order, of a circle of edges whose costs come to less than 0, as Bellman and Ford find it; none
    where there is no such circle.
    """
    cost: defaultdict[_Node, int] = defaultdict(int)
    came: dict[_Node, _Node] = {}
    changed, circle = bool(edges), list[_Node]()
    while changed and not circle:
        changed = False
        for start, end, price in edges:
            if cost[start] + price < cost[end]:
                cost[end], came[end], changed = cost[start] + price, start, True
        circle = _circle(came) if changed else []
    return circle


def _circle(came: Mapping[_Node, _Node]) -> list[_Node]:
    """Nodes each of which came from the one before, the first from the last."""
    walks: dict[_Node, _Node] = {}
    for first in came:
        node = first
        while node in came and node not in walks:
            walks[node] = first
            node = came[node]
        if walks.get(node) == first:
            circle = [node]
            while came[circle[-1]] != node:
                circle.append(came[circle[-1]])
            return circle[::-1]
    return []


class _Kept:
    """An assignment in the making: first what members owned and may keep, then what is given to them."""

    def __init__(
        self,
        members: Mapping[MemberId, Subscriber],
        subscribers: Mapping[TopicName, list[MemberId]],
        partitions: Mapping[TopicName, int],
    ) -> None:
        self._subscribers = subscribers
        self._heaps: dict[tuple[MemberId, ...], list[tuple[int, MemberId]]] = {}
        self._home: dict[TopicPartition, MemberId] = {}
        """Who owned it before and may keep it."""
        self.owner: dict[TopicPartition, MemberId] = {}
        self._by_topic: dict[MemberId, dict[TopicName, deque[TopicPartition]]] = {m: {} for m in sorted(members)}
        """Of each topic those come first that were its own before."""
        self._load = dict.fromkeys(self._by_topic, 0)
        for member in self._by_topic:
            for tp in members[member].owned:
                exists = 0 <= tp.partition < partitions.get(tp.topic, 0)
                if exists and tp.topic in members[member].topics and tp not in self._home:
                    self._home[tp] = member
                    self.give(tp, member)

    def give(self, tp: TopicPartition, member: MemberId) -> None:
        self.owner[tp] = member
        tps = self._by_topic[member].setdefault(tp.topic, deque())
        (tps.appendleft if self._home.get(tp) == member else tps.append)(tp)
        self._load[member] += 1

    def take(self, tp: TopicPartition) -> None:
        member = self.owner[tp]
        self._by_topic[member][tp.topic].remove(tp)
        self._load[member] -= 1

    def give_to_least(self, tp: TopicPartition) -> None:
        """Loads only grow meanwhile, so what a heap says of one is its load or less."""
        subscribers = tuple(self._subscribers[tp.topic])
        heap = self._heaps.setdefault(subscribers, [(0, member) for member in subscribers])
        while heap[0][0] != self._load[heap[0][1]]:
            heapreplace(heap, (self._load[heap[0][1]], heap[0][1]))
        self.give(tp, heap[0][1])

    def level(self) -> bool:
        """Pass one partition each along the shortest way from a member with too many to one with too few; False when
        there is no such pair.
        """
        least = min(self._load.values(), default=0)
        for member in sorted(self._load, key=lambda m: (-self._load[m], m)):
            if self._load[member] < least + 2:
                return False
            way = self._way_down(member)
            if way:
                for giver, topic, taker in way:
                    tp = self._by_topic[giver][topic].pop()
                    self._load[giver] -= 1
                    self.give(tp, taker)
                return True
        return False

    def _way_down(self, start: MemberId) -> list[tuple[MemberId, TopicName, MemberId]]:
        """From whom which topic's partition goes to whom, so that in the end ``start`` has one less and a member with
        two less, at least, has one more. Breadth first, so that the fewest partitions move.
        """
        came: dict[MemberId, tuple[MemberId, TopicName]] = {}
        passed: set[TopicName] = set()
        queue = deque([start])
        target, lowest = start, self._load[start] - 1
        while queue and target == start:
            for _ in range(len(queue)):  # all that are equally far: of them the one with the least
                giver = queue.popleft()
                for topic in sorted(t for t, tps in self._by_topic[giver].items() if tps and t not in passed):
                    passed.add(topic)
                    for taker in self._subscribers[topic]:
                        if taker != start and taker not in came:
                            came[taker] = giver, topic
                            queue.append(taker)
                            if self._load[taker] < lowest:
                                target, lowest = taker, self._load[taker]
        way = []
        while target != start:
            giver, topic = came[target]
            way.append((giver, topic, target))
            target = giver
        return way[::-1]

    def bring_back(self) -> bool:
        """Let partitions change hands in a circle of members that has more of them where they were before; False when
        there is no such circle. Everybody has as many as before, or some change places in that.
        """
        circle = _cheaper_circle(self._edges())
        gifts = [*self._gifts(circle)]
        for tp, _ in gifts:
            self.take(tp)
        for tp, taker in gifts:
            self.give(tp, taker)
        return bool(gifts)

    def _edges(self) -> list[_Edge]:
        """Who may give something to whom, by way of a topic or to where it was before; and how many more partitions are
        not where they were before, then. Who has one more than another may give it, and that one need not go on: so
        there is a way from a load to those who have it, and to it from those who have one less.
        """
        away = [(self.owner[tp], home) for tp, home in self._home.items() if self.owner[tp] != home]
        if not away:
            return []
        edges: list[_Edge] = [((_MEMBER, owner), (_MEMBER, home), -1) for owner, home in away]
        for topic, subscribers in self._subscribers.items():
            edges += (((_TOPIC, topic), (_MEMBER, member), 0) for member in subscribers)
        for member, by_topic in self._by_topic.items():
            node, load = (_MEMBER, member), self._load[member]
            for topic, tps in by_topic.items():
                if tps:
                    edges.append((node, (_TOPIC, topic), 1 if self._home.get(tps[-1]) == member else 0))
            edges += [(node, (_LOAD, load + 1), 0), ((_LOAD, load), node, 0)]
        return edges

    def _gifts(self, circle: Sequence[_Node]) -> Iterable[tuple[TopicPartition, MemberId]]:
        """Which partition goes to whom."""
        for place, (kind, giver) in enumerate(circle):
            over, to = circle[place + 1 - len(circle)], circle[place + 2 - len(circle)]
            if kind == _MEMBER and over[0] == _TOPIC:
                yield self._by_topic[giver][over[1]][-1], to[1]
            elif kind == over[0] == _MEMBER:
                tps = chain.from_iterable(self._by_topic[giver].values())
                yield next(tp for tp in tps if self._home.get(tp) == over[1]), over[1]

    def assignment(self) -> Assignment:
        return {
            member: tuple(sorted(tp for tps in by_topic.values() for tp in tps))
            for member, by_topic in self._by_topic.items()
        }
