"""Which brokers keep which new partition."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain, cycle, islice, zip_longest

from raylog.coordination.metadata.model import BrokerInfo, ClusterState, Load
from raylog.protocol.ids import BrokerId


def place(count: int, factor: int, state: ClusterState) -> list[tuple[BrokerId, ...]]:
    """The replicas of ``count`` new partitions of one topic on the brokers of ``state``, which are ``factor`` at least,
    one of them unfenced. As in KRaft fenced ones are taken only where the others are too few, and come last.
    """
    unfenced, load = state.unfenced, state.load
    partitions = spread(count, min(factor, len(unfenced)), unfenced.values(), load)
    more = factor - len(unfenced)
    if more <= 0:
        return partitions
    fenced = sorted(state.brokers.keys() - unfenced.keys(), key=lambda b: (load.replicas.get(b, 0), b))
    rest = cycle(fenced)
    return [(*replicas, *islice(rest, more)) for replicas in partitions]


def spread(count: int, factor: int, brokers: Iterable[BrokerInfo], load: Load) -> list[tuple[BrokerId, ...]]:
    """The replicas of ``count`` new partitions of one topic, ``factor`` each, the preferred leader first.

    Leaders go round: no broker leads two more of the topic than another. The first, and so the surplus, go to those
    that lead the least, then keep the least (``load``); neighbours in the order are in different racks as far as there
    are such.
    A partition's replicas are in different racks as far as there are such; within that, on the brokers that have the
    least of the topic, and so that what one broker leads is followed by all others alike: when it dies, they share
    its leaderships. Needs at least ``factor`` brokers.
    """
    rack_of = {broker.id: broker.rack for broker in brokers}
    order = _alternating_racks(rack_of, load)
    place = {broker: index for index, broker in enumerate(order)}
    kept = Counter(order[index % len(order)] for index in range(count))
    followers: Counter[tuple[BrokerId, BrokerId]] = Counter()
    successors: Counter[tuple[BrokerId, BrokerId]] = Counter()  # those that come right after the leader
    partitions = []
    for index in range(count):
        leader = order[index % len(order)]
        chosen: list[BrokerId] = []
        racks = Counter([rack_of[leader]])
        for _ in range(factor - 1):
            best = min(
                (broker for broker in order if broker != leader and broker not in chosen),
                key=lambda b: (  # only called at once, so it may see the loop's variables
                    racks[rack_of[b]],
                    kept[b],
                    followers[leader, b],
                    load.replicas.get(b, 0),
                    (place[b] - index) % len(order),
                ),
            )
            chosen.append(best)
            racks[rack_of[best]] += 1
            kept[best] += 1
            followers[leader, best] += 1
        chosen.sort(key=lambda b: successors[leader, b])
        successors.update((leader, broker) for broker in chosen[:1])
        partitions.append((leader, *chosen))
    return partitions


def _alternating_racks(rack_of: Mapping[BrokerId, str | None], load: Load) -> list[BrokerId]:
    """The brokers, the least loaded first as far as neighbours can be in different racks."""
    racks: dict[str | None, list[BrokerId]] = defaultdict(list)
    for broker in sorted(rack_of, key=lambda b: (load.preferred.get(b, 0), load.replicas.get(b, 0), b)):
        racks[rack_of[broker]].append(broker)
    return [broker for broker in chain.from_iterable(zip_longest(*racks.values())) if broker is not None]
