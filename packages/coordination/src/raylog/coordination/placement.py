"""Which broker gets which new partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain, zip_longest

from raylog.coordination.model import BrokerInfo, ClusterState
from raylog.protocol.ids import BrokerId


def spread(count: int, brokers: Iterable[BrokerInfo], load: Mapping[BrokerId, int]) -> list[BrokerId]:
    """A broker for each of ``count`` new partitions of one topic.

    No broker gets two more of the topic than another. The first, and so the surplus, go to those that have
    the fewest replicas (``load``); neighbours in the order are in different racks as far as there are such.
    """
    racks: dict[str | None, list[BrokerId]] = defaultdict(list)
    for broker in sorted(brokers, key=lambda broker: (load.get(broker.id, 0), broker.id)):
        racks[broker.rack].append(broker.id)
    order = [broker for broker in chain.from_iterable(zip_longest(*racks.values())) if broker is not None]
    return [order[index % len(order)] for index in range(count)]


def replica_counts(state: ClusterState) -> dict[BrokerId, int]:
    """How many replicas each broker keeps; those that keep none are left out."""
    counts: dict[BrokerId, int] = defaultdict(int)
    for _, partition in state.partitions():
        for broker in partition.replicas:
            counts[broker] += 1
    return counts
