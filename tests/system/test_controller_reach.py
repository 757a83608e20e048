"""Brokers that the controller does not reach though all sessions live, and a controller that reaches nobody."""

from __future__ import annotations

import time
from pathlib import Path

from kit.cluster import InProcessCluster
from kit.machine import scaled, scaled_ms
from kit.waiting import wait_until
from kit.wire import WireClient
from raylog.coordination.metadata import paths
from raylog.protocol.errors import NotController, TopicAlreadyExists
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

TP = TopicPartition(TopicName("flights"), PartitionIndex(0))
CONFIG = {"replica.lag.time.max.ms": "1000", "default.replication.factor": "3"}
SESSION_MS = scaled_ms(1_000)
WAIT_S = 20.0
METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER = 3, 10, 60


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


def test_cluster_goes_on_though_the_controller_epoch_is_deleted(tmp_path: Path) -> None:
    """Brokers refuse a controller of an epoch below one that they have seen."""
    with InProcessCluster(tmp_path, brokers=3, config=CONFIG, session_timeout_ms=SESSION_MS) as cluster:
        cluster.create_topic("flights")
        for name in ("in-office", "elected-next"):
            before = cluster.controller
            epoch = before.partitions.state().controller_epoch
            cluster.stores[before.broker_id].delete(paths.CONTROLLER_EPOCH)
            if name == "elected-next":
                cluster.restart(before.broker_id)

            def is_created(name: str = name) -> bool:
                try:
                    cluster.create_topic(name)
                except (NotController, TopicAlreadyExists):
                    pass
                return all(TopicName(name) in broker.partitions.state().topics for broker in cluster.brokers.values())

            wait_until(is_created, WAIT_S, "all brokers hear of a topic")
            assert all(b.partitions.state().controller_epoch > epoch for b in cluster.brokers.values())


def test_controller_whose_broker_hangs_makes_way(tmp_path: Path) -> None:
    """What it was told last does not end, as with a disk that blocks; its other threads go on."""
    with InProcessCluster(tmp_path, brokers=3, config=CONFIG, session_timeout_ms=SESSION_MS) as cluster:
        cluster.create_topic("flights")
        hung = cluster.controller
        others = [broker for broker in cluster.brokers.values() if broker is not hung]
        with hung.partitions._lock:
            wait_until(lambda: any(broker.is_controller for broker in others), WAIT_S, "another controller")

            def do_without() -> bool:
                state = cluster.controller.partitions.state().partition(TP)
                return state is not None and hung.broker_id not in (state.leader, *state.isr)

            wait_until(do_without, WAIT_S, "others lead, without it")
            assert not hung.is_controller

        def is_back() -> bool:
            state = cluster.controller.partitions.state().partition(TP)
            return state is not None and hung.broker_id in state.isr

        wait_until(is_back, WAIT_S, "it is in sync again")


def test_unreachable_broker_is_given_nothing_and_waited_for_by_nobody(tmp_path: Path) -> None:
    """Registered, but unheard: it gets no group, leads no new partition, and clients are not sent to it."""
    with InProcessCluster(tmp_path, brokers=3, config=CONFIG, session_timeout_ms=SESSION_MS) as cluster:
        cluster.create_topic("flights", partitions=3)
        cut = next(b for b in cluster.brokers.values() if b is not cluster.controller)
        others = [b for b in cluster.brokers.values() if b is not cut]
        epoch = cut.describe()["broker_epoch"]
        cluster.cut_off.add(cut.broker_id)
        wait_until(lambda: cut.describe()["broker_epoch"] > epoch, WAIT_S, "it registers anew")
        epoch = cut.describe()["broker_epoch"]

        def others_know() -> bool:
            return all(
                b.partitions.state().fenced == {cut.broker_id}
                and b.partitions.state().brokers[cut.broker_id].epoch == epoch
                for b in others
            )

        wait_until(others_know, WAIT_S, "the others know that it is fenced")
        begun = time.monotonic()
        cluster.create_topic("new", partitions=6, but={cut.broker_id})
        assert time.monotonic() - begun < scaled(WAIT_S / 4), "nobody waits for the one that is cut off"
        for other in others:
            new = other.partitions.state().topics[TopicName("new")].partitions
            assert {p.leader for p in new} == {b.broker_id for b in others}
            assert all(sorted(p.isr) == sorted(b.broker_id for b in others) for p in new)
            with WireClient(other.endpoints["PLAINTEXT"]) as client:
                keys = tuple(f"group-{n}" for n in range(60))
                found = client.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=keys).coordinators
                assert {each.node_id for each in found} == {b.broker_id for b in others}
                told = client.ask(METADATA, 12, topics=None)
                assert {each.node_id for each in told.brokers} == {b.broker_id for b in others}
                listed = client.ask(DESCRIBE_CLUSTER, 2, endpoint_type=1, include_fenced_brokers=True).brokers
                assert {each.broker_id for each in listed if each.is_fenced} == {cut.broker_id}
        with WireClient(cut.endpoints["PLAINTEXT"]) as client:
            found = client.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=keys).coordinators
            assert cut.broker_id not in {each.node_id for each in found}, "without its lease it coordinates nothing"
        assert cut.describe()["broker_epoch"] == epoch, "it is fenced once"
        cluster.cut_off.clear()
        wait_until(
            lambda: not any(b.partitions.state().fenced for b in cluster.brokers.values()), WAIT_S, "it is heard"
        )

        def is_back() -> bool:
            return all(
                cut.broker_id in p.isr
                for p in cluster.controller.partitions.state().topics[TopicName("new")].partitions
            )

        wait_until(is_back, WAIT_S, "it is in sync where it was placed")
