"""Where new partitions go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.coordination.control.placement import spread
from raylog.coordination.metadata.model import BrokerInfo, Load
from raylog.protocol.ids import BrokerEpoch, BrokerId

NOTHING = Load({}, {}, {})


def brokers(*racks: str | None) -> list[BrokerInfo]:
    return [BrokerInfo(BrokerId(n), BrokerEpoch(1), (), rack) for n, rack in enumerate(racks, 1)]


@given(st.lists(st.sampled_from("xyz"), min_size=1, max_size=7), st.integers(1, 7), st.integers(1, 30))
def test_replicas_are_different_brokers_in_different_racks_as_far_as_there_are(
    racks: list[str], factor: int, count: int
) -> None:
    cluster = brokers(*racks)
    factor = min(factor, len(cluster))
    rack_of = {broker.id: broker.rack for broker in cluster}
    partitions = spread(count, factor, cluster, NOTHING)
    assert len(partitions) == count
    for replicas in partitions:
        assert len(set(replicas)) == factor
        assert len({rack_of[broker] for broker in replicas}) == min(factor, len(set(racks)))
    leaders = Counter(replicas[0] for replicas in partitions)
    assert max(leaders.values()) - min(leaders.get(broker.id, 0) for broker in cluster) <= 1


@pytest.mark.parametrize(("racks", "factor"), [("xyz", 2), ("xyz", 3), ("xxyyzz", 3), ("xxyyzz", 2), ("xxxx", 2)])
def test_replicas_spread_evenly(racks: str, factor: int) -> None:
    cluster = brokers(*racks)
    partitions = spread(len(cluster) * 10, factor, cluster, NOTHING)
    kept = Counter(broker for replicas in partitions for broker in replicas)
    assert max(kept.values()) - min(kept.values()) <= 1


@pytest.mark.parametrize(("racks", "factor"), [("vwxyz", 2), ("xyz", 3)])
def test_the_others_share_what_a_broker_leads(racks: str, factor: int) -> None:
    """Else one broker would have to carry all leaderships of one that dies: the second replica is the next to lead."""
    partitions = spread(len(racks) * 8, factor, brokers(*racks), NOTHING)
    for leader in range(1, len(racks) + 1):
        successors = Counter(replicas[1] for replicas in partitions if replicas[0] == leader)
        assert set(successors.values()) == {8 // (len(racks) - 1)}


def test_the_least_loaded_get_the_surplus() -> None:
    kept = {BrokerId(1): 5, BrokerId(2): 1, BrokerId(3): 3}
    assert spread(1, 2, brokers(None, None, None), Load(kept, {}, {})) == [(2, 3)]
    led = {BrokerId(1): 1, BrokerId(2): 3, BrokerId(3): 2}
    assert spread(1, 2, brokers(None, None, None), Load(kept, led, {})) == [(1, 2)]
