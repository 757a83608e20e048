from __future__ import annotations

from typing import Any

import pytest

from raylog.broker.launch.places import find_places, place_for, zookeeper_host
from raylog.protocol.errors import RaylogError


def node(address: str, place: str | None = None, *, alive: bool = True) -> dict[str, Any]:
    labels = {"ray.io/node-id": "x"} | ({"raylog.io/place": place} if place else {})
    return {"Alive": alive, "NodeManagerAddress": address, "Labels": labels}


def test_a_label_pins_and_otherwise_the_address() -> None:
    rack, plain = find_places([node("10.0.0.2", "a"), node("10.0.0.1")], local=False)[::-1]
    assert (rack.name, rack.host, rack.options) == ("a", "10.0.0.2", {"label_selector": {"raylog.io/place": "a"}})
    assert plain.name == plain.host == "10.0.0.1"
    assert plain.options["resources"].keys() == {"node:10.0.0.1"}


def test_dead_nodes_do_not_count() -> None:
    assert len(find_places([node("10.0.0.1"), node("10.0.0.1", alive=False)], local=False)) == 1


def test_nodes_that_look_alike_are_refused_with_the_remedy() -> None:
    with pytest.raises(RaylogError, match=r"--labels raylog\.io/place="):
        find_places([node("10.0.0.1"), node("10.0.0.1")], local=False)


def test_a_local_cluster_listens_on_loopback() -> None:
    [place] = find_places([node("10.0.0.1", "local")], local=True)
    assert place.host == "127.0.0.1"


def test_zookeeper_listens_on_loopback_while_one_node_needs_it() -> None:
    one, two = node("10.0.0.1"), node("10.0.0.2")
    assert zookeeper_host(find_places([one], local=False), "10.0.0.1") == "127.0.0.1"
    assert zookeeper_host(find_places([one, two], local=False), "10.0.0.2") == "10.0.0.2"
    assert zookeeper_host(find_places([node("10.0.0.1", "local")], local=True), "10.0.0.1") == "127.0.0.1"


def test_new_brokers_go_round_robin_and_old_ones_to_their_data() -> None:
    places = find_places([node("10.0.0.1"), node("10.0.0.2")], local=False)
    assert [place_for(broker, places, None).name for broker in range(3)] == ["10.0.0.1", "10.0.0.2", "10.0.0.1"]
    assert place_for(0, places, "10.0.0.2").name == "10.0.0.2"
    with pytest.raises(RaylogError, match="has its data on node 'gone'"):
        place_for(0, places, "gone")
