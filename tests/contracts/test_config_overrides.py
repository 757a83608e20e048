"""Overrides over both stores: the change and its notice come together, and two writers never undo each other."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest

from kit.machine import scaled
from kit.stores import OpenStore
from kit.topics import stored_configs
from raylog.coordination.membership.registration import ensure_cluster
from raylog.coordination.metadata import configs, paths
from raylog.coordination.store.port import NodeChange, NodeEvent, NoNode, StoreEvent
from raylog.protocol.ids import TopicName

pytestmark = pytest.mark.system

T = TopicName("flights")
WRITERS, EACH = 4, 10


def test_a_change_and_its_notice_come_together(open_store: OpenStore) -> None:
    store, controller = open_store(), open_store()
    ensure_cluster(store)
    store.create(paths.topic_config(T), paths.encode_config({}))
    events: SimpleQueue[StoreEvent] = SimpleQueue()
    assert configs.read_changes(controller, events) == ((), ())
    configs.alter_topic_configs(store, T, lambda old: {**old, "flush.ms": "1"})
    configs.alter_broker_configs(store, configs.DEFAULT_BROKER, lambda old: {**old, "num.partitions": "3"})
    assert events.get(timeout=scaled(10)) == NodeEvent(paths.CONFIG_CHANGES, NodeChange.CHILDREN)
    told = configs.read_changes(controller)
    assert told.changes == (
        configs.ConfigChange(T, None, {"flush.ms": "1"}),
        configs.ConfigChange(None, configs.DEFAULT_BROKER, {"num.partitions": "3"}),
    )
    assert len(told.notices) == 2
    assert configs.read_changes(controller) == told, "only a controller that is in office removes them"
    with pytest.raises(NoNode):
        configs.alter_topic_configs(store, TopicName("unknown"), lambda old: {"flush.ms": "1"})


def test_writers_at_once_never_undo_each_other(open_store: OpenStore) -> None:
    stores = [open_store() for _ in range(WRITERS)]
    ensure_cluster(stores[0])

    def write(number: int) -> None:
        for index in range(EACH):
            configs.alter_broker_configs(stores[number], "1", lambda old, name=f"{number}.{index}": {**old, name: "x"})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(stored_configs(stores[0], paths.broker_config("1"))) == {
        f"{n}.{i}" for n in range(WRITERS) for i in range(EACH)
    }
    [change] = configs.read_changes(stores[0]).changes
    assert len(change.configs) == WRITERS * EACH
