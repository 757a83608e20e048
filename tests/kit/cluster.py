"""Whole clusters in one process: real sockets, real files, a metadata store in memory, no Ray."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Set
from pathlib import Path

from kit.machine import scaled_ms
from kit.opened import Opened
from kit.waiting import wait_until
from raylog.broker.broker import Broker
from raylog.broker.config import BROKER_SETTINGS
from raylog.broker.storage.disk.files import FileSystem
from raylog.coordination.controller.events import NewTopic
from raylog.coordination.host.loops import Loops
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import MetadataStore
from raylog.coordination.zookeeper.store import ZkStore
from raylog.protocol.errors import BrokerNotAvailable, RaylogError
from raylog.protocol.ids import BrokerId, PartitionIndex, TopicName, TopicPartition

__all__ = ["InProcessCluster"]

WAIT_S = 10.0
KEEPS = {"log.retention.check.interval.ms": str(24 * 3_600_000)}
"""Records of tests have made-up dates, and retention would delete them after five minutes."""


class InProcessPeerControl:
    """PeerControl by plain calls; a message to a broker in ``cut_off`` is lost."""

    def __init__(self, brokers: Mapping[int, Broker], cut_off: Set[int]) -> None:
        self._brokers = brokers
        self._cut_off = cut_off

    def send(self, broker_id: BrokerId, payload: bytes) -> bytes:
        broker = self._brokers.get(broker_id)
        if broker is None or broker_id in self._cut_off:
            raise BrokerNotAvailable(f"broker {broker_id} does not run")
        return broker.control(payload)

    def propose(self, controller_id: BrokerId, payload: bytes) -> bytes:
        broker = self._brokers.get(controller_id)
        if broker is None:
            raise BrokerNotAvailable(f"broker {controller_id} does not run")
        return broker.propose(payload)


class InProcessCluster(Opened):
    """``brokers`` brokers over one metadata store, on free loopback ports, with their data below ``root``.

    with InProcessCluster(tmp_path, brokers=3) as cluster:
        cluster.create_topic("flights", partitions=6)
        client = connect(cluster.bootstrap_servers)
    """

    def __init__(
        self,
        root: Path,
        *,
        brokers: int = 1,
        config: Mapping[str, str] | None = None,
        racks: Sequence[str] = (),
        overrides: Mapping[int, Mapping[str, str]] | None = None,
        fs: FileSystem | None = None,
        session_timeout_ms: int = scaled_ms(6_000),
        zookeeper: str | None = None,
    ) -> None:
        """``config``: broker settings as text, the same for all brokers; ``racks``: of each broker, none without;
        ``overrides``: settings of single brokers;
        ``zookeeper``: a real one's address.
        """
        self.root = root
        self.tree = MemoryTree()
        self.stores: dict[int, MemoryStore] = {}
        """Each broker's session, to script its loss; none with a real ZooKeeper."""
        self.cut_off: set[int] = set()
        """Brokers that the controller's messages do not reach."""
        self.brokers: dict[int, Broker] = {}
        self._zookeeper = zookeeper
        self._size = brokers
        self._config = {**KEEPS, **(config or {})}
        self._racks = racks
        self._overrides = overrides or {}
        self._fs = fs
        self._session_timeout_ms = session_timeout_ms

    def open(self) -> None:
        for broker_id in range(self._size):
            self.start(broker_id)
        wait_until(
            lambda: all(len(broker.partitions.state().unfenced) == self._size for broker in self._all()),
            WAIT_S,
            "every broker knows all brokers",
        )

    def close(self) -> None:
        """Stop all brokers."""
        for broker in self._all():
            broker.stop(drain=False)
        self.brokers.clear()

    def start(self, broker_id: int) -> Broker:
        """Start a broker on its directory and port."""
        own = {"broker.id": str(broker_id), **self._overrides.get(broker_id, {})}
        if self._racks:
            own["broker.rack"] = self._racks[broker_id]
        if self._zookeeper is not None:
            own["zookeeper.connect"] = self._zookeeper
        settings = BROKER_SETTINGS.settings({**self._config, **own})
        broker = Broker(
            settings,
            self.root / f"broker-{broker_id}",
            store=self._new_store(broker_id),
            peer_control=InProcessPeerControl(self.brokers, self.cut_off),
            fs=self._fs,
            loops=self._loops_of(broker_id),
        )
        self.brokers[broker_id] = broker
        try:
            broker.start()
        except BaseException:
            del self.brokers[broker_id]
            raise
        return broker

    def _loops_of(self, broker_id: int) -> Loops | None:
        """The books of the broker's threads; None: its own."""

    def _new_store(self, broker_id: int) -> MetadataStore:
        if self._zookeeper is not None:
            return ZkStore(self._zookeeper, session_timeout_ms=self._session_timeout_ms)
        store = self.stores[broker_id] = MemoryStore(self.tree, session_timeout_ms=self._session_timeout_ms)
        return store

    def stop(self, broker_id: int) -> None:
        """Stop a broker in an orderly way."""
        self.brokers[broker_id].stop()
        del self.brokers[broker_id]

    def restart(self, broker_id: int) -> Broker:
        """Stop a broker and start it again on its directory and port."""
        self.stop(broker_id)
        return self.start(broker_id)

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,host:port`` of all brokers that run."""
        return ",".join(broker.address for broker in self._all())

    @property
    def controller(self) -> Broker:
        """The broker that is the controller."""

        def elected() -> Broker | None:
            return next((broker for broker in self._all() if broker.is_controller), None)

        found = wait_until(elected, WAIT_S, "a controller")
        assert found is not None
        return found

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        but: Container[int] = (),
    ) -> None:
        """Create a topic by the controller and wait until every broker (``but`` these) knows it, and all its partitions
        are led.
        """
        topic = NewTopic(TopicName(name), partitions, configs=dict(config or {}))
        timeout_ms = scaled_ms(int(WAIT_S * 1000))
        [result] = self.controller.topics.create_topics([topic], timeout_ms=timeout_ms, validate_only=False)
        if isinstance(result, RaylogError):
            raise result
        wait_until(
            lambda: all(
                broker.partitions.state().topic(TopicName(name))
                for broker in self._all()
                if broker.broker_id not in but
            ),
            WAIT_S,
            f"every broker knows {name}",
        )
        for partition in range(partitions):
            self.leader(name, partition)  # a broker knows a topic a moment before it leads in it

    def leader(self, topic: str, partition: int) -> Broker:
        """The broker that leads the partition."""
        tp = TopicPartition(TopicName(topic), PartitionIndex(partition))

        def leading() -> Broker | None:
            return next((broker for broker in self._all() if tp in broker.partitions.led()), None)

        found = wait_until(leading, WAIT_S, f"a leader of {tp}")
        assert found is not None
        return found

    def _all(self) -> list[Broker]:
        return [self.brokers[broker_id] for broker_id in sorted(self.brokers)]
