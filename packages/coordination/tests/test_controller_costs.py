"""What an event costs the controller and each broker, in steps of the interpreter: by what changes, not by what there
is. What C code does with all topics at once (copying a dictionary of them) is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from kit.controlled import ControlledCluster, created, topic
from kit.steps import steps
from kit.stores import Counting
from raylog.coordination.control.peer_control import UpdateState, local_changes
from raylog.coordination.controller.events import Acked, ConfigChanged, Deposed, Loaded
from raylog.coordination.membership.election import resign
from raylog.coordination.metadata import configs, paths, snapshot
from raylog.coordination.metadata.model import ClusterState
from raylog.protocol.ids import BrokerId, PartitionIndex, TopicId, TopicName, TopicPartition

PARTITIONS = 10
SMALL, LARGE = 100, 1_000
"""Topics, of ten partitions each: 1,000 and 10,000 partitions."""
ONE = BrokerId(1)
OLD, OLD_ID = TopicName("old"), TopicId(UUID(int=5))
STEPS_OF_LOAD = 700
"""Of reading one partition, the store in memory included, where most have equal states."""


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


def reach(cluster: ControlledCluster) -> None:
    """What a broker tells clients of while another is fenced, after a delta: what each keeps was counted before."""
    assert cluster.controller.state.load.led
    before = cluster.controller.state.changed(fenced=frozenset({BrokerId(3)}))
    assert before.reachable
    assert BrokerId(3) in before.with_topics(before.topics[TopicName("t0007")]).reachable, "it leads"


@pytest.mark.parametrize("event", [create, delete, configure, propose, take_in, reach])
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


def test_reading_again_tells_brokers_only_what_differs() -> None:
    cluster = made(3)
    before = cluster.controller.state
    cluster.store.create(paths.topic(OLD), paths.encode_topic(paths.TopicAssignment(OLD_ID, ((ONE,),))))
    cluster.feed(Loaded(*snapshot.load(cluster.store)))
    messages = [UpdateState.decode(message.payload) for message in cluster.wire]
    assert {message.full for message in messages} == {False}
    assert {topic.name for message in messages for topic in message.topics} == {OLD}
    after = cluster.controller.state
    assert all(after.topics[name] is topic for name, topic in before.topics.items()), "nothing is worked out again"


def load_costs(cluster: ControlledCluster) -> tuple[int, int, int]:
    """Round trips, requests and steps of reading everything."""
    with Counting(cluster.tree) as store:
        cost = steps(lambda: snapshot.load(store))
        return store.trips, store.asked, cost


def test_reading_everything_costs_few_trips_and_steps(
    clusters: tuple[ControlledCluster, ControlledCluster],
) -> None:
    (few_trips, few_asked, few_steps), (trips, asked, cost) = map(load_costs, clusters)
    more = (LARGE - SMALL) * PARTITIONS
    assert trips == few_trips <= 13
    assert asked - few_asked <= 1.3 * more, "a state each, and its topic's node and overrides"
    assert cost - few_steps <= STEPS_OF_LOAD * more


@pytest.mark.parametrize("count", [2, 20])
def test_reading_brokers_and_config_changes_costs_few_trips(count: int) -> None:
    cluster = ControlledCluster(count)
    for n in range(1, count + 1):
        configs.alter_broker_configs(cluster.store, str(n), lambda old: {"num.partitions": "3"})
    with Counting(cluster.tree) as store:
        assert len(snapshot.load_brokers(store)) == count
        assert len(configs.read_changes(store).changes) == count
        assert len(configs.all_broker_configs(store)) == count
        assert store.trips <= 8
