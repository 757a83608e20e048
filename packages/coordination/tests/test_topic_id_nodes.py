"""The nodes of topics' ids: there for each topic, and for no other."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from kit.controlled import ControlledCluster, assert_agreement, created, topic
from raylog.coordination.controller.events import Deposed, Loaded, Write
from raylog.coordination.membership.election import resign
from raylog.coordination.metadata import paths, snapshot
from raylog.coordination.store.port import Create
from raylog.protocol.ids import BrokerId, TopicId, TopicName

FLIGHTS, OLD = TopicName("flights"), TopicName("old")
STRAY, OLD_ID = TopicId(UUID(int=7)), TopicId(UUID(int=5))


@pytest.fixture
def cluster() -> ControlledCluster:
    cluster = ControlledCluster()
    cluster.elect()
    created(cluster, topic("flights", 2, replication_factor=3))
    return cluster


def reload(cluster: ControlledCluster) -> None:
    cluster.feed(Loaded(*snapshot.load(cluster.store)))
    cluster.deliver()


def reelect(cluster: ControlledCluster) -> None:
    resign(cluster.store)
    cluster.feed(Deposed())
    cluster.elect()
    cluster.deliver()


def id_nodes(cluster: ControlledCluster) -> set[str]:
    return {f"{paths.TOPIC_IDS}/{name}" for name in cluster.store.children(paths.TOPIC_IDS)}


def make_old(cluster: ControlledCluster) -> None:
    """Another program makes a topic, without the node of its id."""
    assignment = paths.TopicAssignment(OLD_ID, ((BrokerId(1),),))
    cluster.store.create(paths.topic(OLD), paths.encode_topic(assignment))


@pytest.mark.parametrize("read", [reload, reelect])
def test_missing_id_is_made_and_a_stray_one_removed(
    cluster: ControlledCluster, read: Callable[[ControlledCluster], None]
) -> None:
    [flights] = id_nodes(cluster)
    cluster.store.delete(flights)
    cluster.store.create(paths.topic_id(STRAY), b"never-there")
    cluster.store.create(f"{paths.TOPIC_IDS}/foreign", b"")
    make_old(cluster)
    read(cluster)
    assert id_nodes(cluster) == {flights, paths.topic_id(OLD_ID), f"{paths.TOPIC_IDS}/foreign"}
    found = cluster.store.get(flights)
    assert found is not None
    assert found.data == b"flights"
    assert_agreement(cluster)


def test_id_of_a_topic_that_is_deleted_is_not_made(cluster: ControlledCluster) -> None:
    make_old(cluster)
    cluster.store.create(paths.delete_topic(OLD))
    cluster.seen.clear()
    reload(cluster)
    writes = [effect for effect in cluster.seen if isinstance(effect, Write)]
    made = {op.path for write in writes for multi in write.multis for op in multi if isinstance(op, Create)}
    assert paths.topic_id(OLD_ID) not in made
    assert paths.topic_id(OLD_ID) not in id_nodes(cluster)


def test_unreadable_topic_keeps_its_id_until_it_is_deleted(cluster: ControlledCluster) -> None:
    [flights] = id_nodes(cluster)
    cluster.store.set(paths.topic(FLIGHTS), b"?")
    reload(cluster)
    assert id_nodes(cluster) == {flights}
    cluster.delete(FLIGHTS)
    cluster.deliver()
    assert not id_nodes(cluster)


def test_topics_of_an_old_tool_have_no_id_to_make(cluster: ControlledCluster) -> None:
    before = id_nodes(cluster)
    cluster.store.create(paths.topic(OLD), b'{"version":1,"partitions":{"0":[1]}}')
    reload(cluster)
    assert OLD in cluster.controller.state.topics
    assert id_nodes(cluster) == before
