"""Places: the nodes that brokers are pinned to, by something that survives the node's restart.

A node's id does not (a restarted raylet has a new one), so a broker is pinned by the label
``raylog.io/place`` where nodes carry it, else by the node's address, which must then be the node's alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raylog.broker.launch.local_ray import LOCAL_PLACE, LOOPBACK, PLACE_LABEL
from raylog.protocol.errors import RaylogError

__all__ = ["Place", "find_places", "place_for", "zookeeper_host"]

PIN = 0.001
"""How much of a node's own resource a pinned actor takes: next to nothing."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node as brokers see it."""

    name: str
    """What distinguishes it for good; also its rack."""
    host: str
    """Its address."""
    options: Mapping[str, Any]
    """Ray's options that pin an actor or a task to it."""


def find_places(nodes: Iterable[Mapping[str, Any]], *, local: bool) -> Sequence[Place]:
    """The places of a Ray cluster, from what ``ray.nodes()`` says; ``local``: it is ours and of one node.

    Raises RaylogError when nodes cannot be told apart.
    """
    places: dict[str, Place] = {}
    for node in nodes:
        if not node["Alive"]:
            continue
        label = node.get("Labels", {}).get(PLACE_LABEL)
        host = LOOPBACK if local else str(node["NodeManagerAddress"])
        if label:
            place = Place(label, host, {"label_selector": {PLACE_LABEL: label}})
        else:
            address = str(node["NodeManagerAddress"])
            place = Place(address, host, {"resources": {f"node:{address}": PIN}})
        if place.name in places:
            raise RaylogError(
                f"two Ray nodes are called {place.name!r}: start each with `ray start --labels {PLACE_LABEL}=NAME`"
            )
        places[place.name] = place
    if not places:
        raise RaylogError("the Ray cluster has no live node")
    if local and LOCAL_PLACE not in places:
        raise RaylogError(f"the local Ray node lost its label {PLACE_LABEL}={LOCAL_PLACE}")
    return [places[name] for name in sorted(places)]


def zookeeper_host(places: Sequence[Place], own_address: str) -> str:
    """Where the embedded ZooKeeper listens: on loopback, unless there are nodes that could not reach it there."""
    return LOOPBACK if len({place.host for place in places}) == 1 else own_address


def place_for(broker_id: int, places: Sequence[Place], former: str | None) -> Place:
    """Where a broker goes: where its data is, or, when it is new, round robin.

    Raises RaylogError when the node with its data is not there.
    """
    if former is None:
        return places[broker_id % len(places)]
    for place in places:
        if place.name == former:
            return place
    known = ", ".join(place.name for place in places)
    raise RaylogError(f"broker {broker_id} has its data on node {former!r}, but Ray only has {known}")
