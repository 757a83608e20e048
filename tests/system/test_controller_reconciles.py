"""What another program changed in the metadata store behind the controller's back is found at the next comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.waiting import wait_until
from raylog.coordination.metadata import paths
from raylog.protocol.ids import NO_LEADER, PartitionIndex, TopicName, TopicPartition

pytestmark = pytest.mark.system

WAIT_S = 10.0
TP = TopicPartition(TopicName("t"), PartitionIndex(0))


def test_a_state_that_was_overwritten_is_decided_anew(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, brokers=3, config={"default.replication.factor": "3"}) as cluster:
        cluster.create_topic("t")
        controller = cluster.controller
        state = controller.partitions.state().partition(TP)
        assert state is not None
        store = cluster.stores[controller.broker_id]
        store.set(paths.partition_state(TP), paths.encode_partition_state(replace(state, leader=NO_LEADER)))
        controller.reconcile()

        def led_again() -> bool:
            now = controller.partitions.state().partition(TP)
            return now is not None and now.is_online and now.version > state.version + 1

        wait_until(led_again, WAIT_S, "a leader, over the state that was found")


def test_nothing_is_written_when_nothing_differs(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, brokers=3, config={"default.replication.factor": "3"}) as cluster:
        cluster.create_topic("t", partitions=6)
        controller = cluster.controller
        before = controller.partitions.state()
        controller.reconcile()
        cluster.create_topic("later")  # behind it in the controller's queue
        assert controller.partitions.state().topics[TopicName("t")] == before.topics[TopicName("t")]
