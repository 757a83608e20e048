"""What an event costs the controller and each broker, in steps of the interpreter: by what changes, not by what there
is. What C code does with all topics at once (copying a dictionary of them) is not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from kit.controlled import ControlledCluster, created, topic
from raylog.coordination import paths, snapshot
from raylog.coordination.controller_events import Acked, ConfigChanged, Deposed, Loaded
from raylog.coordination.election import resign
from raylog.coordination.model import ClusterState
from raylog.coordination.peer_control import local_changes
from raylog.protocol.ids import BrokerId, PartitionIndex, TopicName, TopicPartition

PARTITIONS = 10
SMALL, LARGE = 100, 1_000
"""Topics, of ten partitions each: 1,000 and 10,000 partitions."""
ONE = BrokerId(1)


def steps(action: Callable[[], object]) -> int:
    """Instructions of Python code that ``action`` runs."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


@pytest.fixture(scope="module")
def clusters() -> tuple[ControlledCluster, ControlledCluster]:
    """A small and a large one, three brokers each, that have been told everything."""
    return made(SMALL), made(LARGE)


def made(topics: int) -> ControlledCluster:
    cluster = ControlledCluster()
    cluster.elect()
    created(cluster, *(topic(f"t{n:04}", PARTITIONS, replication_factor=3) for n in range(topics)))
    cluster.tick()
    cluster.deliver()
    return cluster


def create(cluster: ControlledCluster) -> None:
    created(cluster, topic(f"new{len(cluster.controller.state.topics)}", 1, replication_factor=3))


def configure(cluster: ControlledCluster) -> None:
    current = cluster.controller.state.topics[TopicName("t0007")].configs.get("min.insync.replicas")
    cluster.configure(TopicName("t0007"), {"min.insync.replicas": "1" if current == "2" else "2"})
    cluster.deliver()


def propose(cluster: ControlledCluster) -> None:
    tp = TopicPartition(TopicName("t0007"), PartitionIndex(1))
    found = cluster.controller.state.partition(tp)
    assert found is not None
    cluster.propose_isr(tp, *(found.replicas if len(found.isr) == 1 else (found.leader,)))
    cluster.deliver()


def delete(cluster: ControlledCluster) -> None:
    create(cluster)
    [*_, newest] = cluster.controller.state.topics
    cluster.delete(newest)
    cluster.deliver()


def take_in(cluster: ControlledCluster) -> None:
    """What a broker works out from a delta."""
    before = cluster.controller.state
    configure(cluster)
    local_changes(ONE, before, cluster.controller.state)


@pytest.mark.parametrize("event", [create, delete, configure, propose, take_in])
def test_event_costs_by_what_changes(
    clusters: tuple[ControlledCluster, ControlledCluster], event: Callable[[ControlledCluster], None]
) -> None:
    for cluster in clusters:
        event(cluster)  # what is worked out once
    small, large = (steps(lambda cluster=cluster: event(cluster)) for cluster in clusters)
    assert large <= 1.2 * small + 500, f"{small} steps of {SMALL} topics, {large} of {LARGE}"


def configure_all(cluster: ControlledCluster) -> None:
    cluster.feed(ConfigChanged({"num.partitions": "3"}, broker="<default>"))


def fence_new(cluster: ControlledCluster) -> None:
    cluster.lose(3)
    cluster.bring_back(3)
    assert cluster.controller.state.fenced == {3}


def delete_unreadable(cluster: ControlledCluster) -> None:
    cluster.delete(TopicName("bad"))
    assert not cluster.controller.state.unreadable


@pytest.mark.parametrize("event", [configure_all, fence_new, delete_unreadable])
def test_event_about_no_topic_keeps_what_was_counted(event: Callable[[ControlledCluster], None]) -> None:
    cluster = ControlledCluster(silence_ms=2_000)
    cluster.elect()
    created(cluster, topic("flights", 2, replication_factor=3))
    cluster.store.create(paths.topic(TopicName("bad")), b"?")
    cluster.feed(Loaded(*snapshot.load(cluster.store)))
    cluster.tick()
    cluster.deliver()
    assert cluster.controller.state.load
    assert cluster.controller.state.topics_by_id
    event(cluster)
    after = cluster.controller.state
    assert {"load", "topics_by_id"} <= after.__dict__.keys(), "they are not counted again"
    anew = ClusterState(topics=after.topics)
    assert (after.load, after.topics_by_id) == (anew.load, anew.topics_by_id)


def test_first_answers_to_a_new_controller_cost_no_pass_each(
    clusters: tuple[ControlledCluster, ControlledCluster],
) -> None:
    small, large = map(first_answer, clusters)
    assert large <= 1.2 * small + 500, f"{small} steps of {SMALL} topics, {large} of {LARGE}"


def first_answer(cluster: ControlledCluster) -> int:
    """Steps for one broker's first answer to a controller that took office, by which it is aware of all before."""
    resign(cluster.store)
    cluster.feed(Deposed())
    cluster.wire.clear()
    cluster.elect()
    message = cluster.wire.popleft()
    ack = cluster.brokers[message.to].receiver.receive(message.payload, lambda before, after: None)
    cost = steps(lambda: cluster.feed(Acked(ack)))
    cluster.deliver()
    return cost
