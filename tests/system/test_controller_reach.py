"""Brokers that the controller does not reach though all sessions live, and a controller that reaches nobody."""

from __future__ import annotations

from pathlib import Path

from kit.cluster import InProcessCluster
from kit.waiting import wait_until
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

TP = TopicPartition(TopicName("flights"), PartitionIndex(0))
CONFIG = {"replica.lag.time.max.ms": "1000", "default.replication.factor": "3"}
SESSION_MS = 1_000
WAIT_S = 20.0


def test_others_lead_what_a_broker_led_that_the_controller_does_not_reach(tmp_path: Path) -> None:
    """It hears of it by the metadata store, registers anew and serves nothing until it can be reached."""
    with InProcessCluster(tmp_path, brokers=3, config=CONFIG, session_timeout_ms=SESSION_MS) as cluster:
        controller = cluster.controller
        names = [f"flights{n}" for n in range(3)]
        for name in names:
            cluster.create_topic(name)
        tps = [TopicPartition(TopicName(name), PartitionIndex(0)) for name in names]
        cut = next(b for b in cluster.brokers.values() if b is not controller and b.partitions.led())
        led = next(tp for tp in tps if tp in cut.partitions.led())
        epoch = cut.describe()["broker_epoch"]
        cluster.cut_off.add(cut.broker_id)

        def others_lead() -> bool:
            state = controller.partitions.state().partition(led)
            return state is not None and state.leader != cut.broker_id and cut.broker_id not in state.isr

        wait_until(others_lead, WAIT_S, f"others lead {led}, without the one that was cut off")
        wait_until(lambda: cut.describe()["broker_epoch"] > epoch, WAIT_S, "it registers anew")
        assert not cut.describe()["lease_held"], "nobody has told this incarnation what it leads"
        cluster.cut_off.clear()

        def is_back() -> bool:
            states = [controller.partitions.state().partition(tp) for tp in tps]
            return all(state is not None and cut.broker_id in state.isr for state in states)

        wait_until(is_back, WAIT_S, "it is in sync everywhere")
        wait_until(lambda: cut.describe()["lease_held"], WAIT_S, "it serves", instead=cut.describe)


def test_a_controller_that_reaches_nobody_makes_way(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, brokers=3, config=CONFIG, session_timeout_ms=SESSION_MS) as cluster:
        controller = cluster.controller
        others = [broker for broker in cluster.brokers.values() if broker is not controller]
        epochs = [broker.describe()["broker_epoch"] for broker in others]
        cluster.cut_off.update(broker.broker_id for broker in others)
        wait_until(lambda: any(broker.is_controller for broker in others), WAIT_S, "another controller")
        cluster.cut_off.clear()
        # It lets go of its office in the store, where others see it, before it has counted itself out.
        wait_until(lambda: not controller.is_controller, WAIT_S, "the old one knows")
        assert [broker.describe()["broker_epoch"] for broker in others] == epochs, "it has fenced nobody"
        new = cluster.controller
        wait_until(
            lambda: all(b.partitions.controller_id == new.broker_id for b in cluster.brokers.values()),
            WAIT_S,
            "all hear the new one",
        )
        cluster.create_topic("flights")
        assert cluster.leader("flights", 0)
