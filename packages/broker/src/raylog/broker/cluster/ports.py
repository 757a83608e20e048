"""The handlers' ports that end at the controller (topics) and in the store (overrides, producer ids)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TypeVar

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.types import TopicName as KioTopicName
from kio.static.primitive import i16, i32, i32Timedelta

from raylog.broker.cluster.controller_calls import ControllerCalls
from raylog.broker.events import EventLog
from raylog.broker.partition.table import PartitionTable
from raylog.coordination.controller.events import CreatedTopic, NewPartitions, NewReplicas, NewTopic
from raylog.coordination.host.loops import Loops
from raylog.coordination.metadata import configs, paths
from raylog.coordination.metadata.configs import Change
from raylog.coordination.metadata.model import ClusterState
from raylog.coordination.metadata.producer_ids import ProducerIdAllocator
from raylog.coordination.store.port import MetadataStore, NoNode, StoreError, WriteTooLarge
from raylog.protocol.errors import (
    BrokerNotAvailable,
    CoordinatorNotAvailable,
    InvalidConfig,
    InvalidRequest,
    NotController,
    RaylogError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import BrokerId, ProducerId, TopicId, TopicName, TopicPartition
from raylog.protocol.wire.messages import encode_request

__all__ = ["ControllerTopics", "StoredConfigs", "StoredProducerIds"]

logger = EventLog(__name__)

AUTO_CREATE_TIMEOUT_S = 10.0
CONFIG_WAIT_S = 2.0
"""How long a change of overrides waits for the controller to tell of it: it has happened already."""

T = TypeVar("T")


class ControllerTopics:
    """Creates and deletes topics through this broker's controller; NotController where it is not elected."""

    def __init__(self, controller: ControllerCalls, state: Callable[[], ClusterState], loops: Loops) -> None:
        self._controller = controller
        self._loops = loops
        self._state = state
        self._asked: set[TopicName] = set()
        self._lock = threading.Lock()

    def create_topics(
        self, topics: Sequence[NewTopic], *, timeout_ms: int, validate_only: bool
    ) -> Sequence[CreatedTopic | RaylogError]:
        """One result per topic, in order. Raises NotController."""
        results = self._controller.create_topics(topics, timeout_ms=timeout_ms, validate_only=validate_only)
        return [result for result in results if isinstance(result, CreatedTopic | RaylogError)]

    def delete_topics(
        self, topics: Sequence[TopicName | TopicId], *, timeout_ms: int
    ) -> Sequence[TopicName | RaylogError]:
        """One result per topic, in order. Raises NotController."""
        results = self._controller.delete_topics(topics, timeout_ms=timeout_ms)
        return [result for result in results if isinstance(result, str | RaylogError)]

    def create_partitions(
        self, topics: Sequence[NewPartitions], *, timeout_ms: int, validate_only: bool
    ) -> Sequence[TopicName | RaylogError]:
        """One result per topic, in order. Raises NotController."""
        results = self._controller.create_partitions(topics, timeout_ms=timeout_ms, validate_only=validate_only)
        return [result for result in results if isinstance(result, str | RaylogError)]

    def elect_leaders(
        self, partitions: Sequence[TopicPartition], *, unclean: bool, timeout_ms: int
    ) -> Sequence[TopicPartition | RaylogError]:
        """One result per partition, in order. Raises NotController."""
        results = self._controller.elect_leaders(partitions, unclean=unclean, timeout_ms=timeout_ms)
        return [result for result in results if isinstance(result, TopicPartition | RaylogError)]

    def reassign(
        self, partitions: Sequence[NewReplicas], *, timeout_ms: int, allow_factor_change: bool
    ) -> Sequence[TopicPartition | RaylogError]:
        """One result per partition, in order. Raises NotController."""
        results = self._controller.reassign(partitions, timeout_ms=timeout_ms, allow_factor_change=allow_factor_change)
        return [result for result in results if isinstance(result, TopicPartition | RaylogError)]

    def auto_create(self, topics: Sequence[TopicName]) -> None:
        """Ask the controller, wherever it is, for topics with default settings; does not wait or raise."""
        with self._lock:
            fresh = [topic for topic in topics if topic not in self._asked]
            self._asked.update(fresh)
        if fresh:
            try:
                self._loops.once("auto-create", partial(self._auto_create, fresh))
            except RuntimeError as error:  # no more threads
                logger.warning("topics not created automatically", topics=",".join(fresh), reason=error)
                self._forget(fresh)

    def _auto_create(self, topics: list[TopicName]) -> None:
        try:
            timeout_ms = int(AUTO_CREATE_TIMEOUT_S * 1000)
            wanted = [NewTopic(topic) for topic in topics]
            self._controller.create_topics(wanted, timeout_ms=timeout_ms, validate_only=False)
        except NotController:
            self._ask_controller(topics)
        except RaylogError as error:
            logger.info("topics not created automatically", topics=",".join(topics), reason=error)
        finally:
            self._forget(topics)

    def _forget(self, topics: list[TopicName]) -> None:
        with self._lock:
            self._asked.difference_update(topics)

    def _ask_controller(self, topics: list[TopicName]) -> None:
        """Over the controller's socket, as a client would; what it answers shows in the next metadata."""
        state = self._state()
        controller = state.brokers.get(state.controller_id)
        endpoint = controller.endpoint() if controller is not None else None
        if endpoint is None:
            return
        request = CreateTopicsRequest(
            topics=tuple(
                CreatableTopic(
                    name=KioTopicName(topic),
                    num_partitions=i32(-1),
                    replication_factor=i16(-1),
                    assignments=(),
                    configs=(),
                )
                for topic in topics
            ),
            timeout=i32Timedelta.parse(timedelta(seconds=AUTO_CREATE_TIMEOUT_S)),
        )
        try:
            with socket.create_connection((endpoint.host, endpoint.port), AUTO_CREATE_TIMEOUT_S) as connection:
                connection.sendall(encode_request(request, 0, "raylog-auto-create"))
                connection.recv(1)
        except OSError as error:
            logger.info(
                "controller not reached for automatic topics", topics=",".join(topics), at=endpoint, reason=error
            )


class StoredConfigs:
    """Overrides in the metadata store. A change returns once this broker knows it, too, or soon after at the latest."""

    def __init__(self, store: MetadataStore, table: PartitionTable) -> None:
        self._store = store
        self._table = table

    def alter_topic(self, topic: TopicName, change: Change, *, validate_only: bool) -> None:
        """See ConfigAdmin."""
        known = self._table.state().topic(topic)
        if known is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic}")
        if validate_only:
            change(known.configs)
            return
        new = self._stored(
            lambda: configs.alter_topic_configs(self._store, topic, change, known.configs), f"topic {topic}"
        )

        def knows(state: ClusterState) -> bool:
            now = state.topic(topic)
            return now is None or now.configs == new

        self._table.wait_for(knows, CONFIG_WAIT_S)

    def alter_broker(self, broker: str, change: Change, *, validate_only: bool) -> None:
        """See ConfigAdmin."""
        if broker != configs.DEFAULT_BROKER:
            self._check_broker(broker)
        known = self._table.state().broker_configs.get(broker, {})
        if validate_only:
            change(known)
            return
        new = self._stored(lambda: configs.alter_broker_configs(self._store, broker, change, known), f"broker {broker}")
        self._table.wait_for(lambda state: state.broker_configs.get(broker, {}) == new, CONFIG_WAIT_S)

    def _check_broker(self, broker: str) -> None:
        if not broker.isdecimal():
            raise InvalidRequest(f"{broker!r} is no broker id; the empty name stands for all brokers")
        broker_id = BrokerId(int(broker))
        if str(broker_id) != broker:
            raise InvalidRequest(f"broker id {broker!r}: write {broker_id}")
        if broker_id not in self._table.state().brokers:
            registered = self._stored(lambda: self._store.exists(paths.broker_epoch(broker_id)), f"broker {broker}")
            if registered is None:
                raise BrokerNotAvailable(f"no broker ever had the id {broker}")

    def _stored(self, ask: Callable[[], T], what: str) -> T:
        try:
            return ask()
        except NoNode as error:
            raise UnknownTopicOrPartition(f"{what} does not exist any more") from error
        except WriteTooLarge as error:
            raise InvalidConfig(f"{what}: the overrides are too large for the metadata store: {error}") from error
        except StoreError as error:
            raise RequestTimedOut(
                f"{what}: the metadata store did not confirm the change, try again: {error}"
            ) from error


class StoredProducerIds:
    """Producer ids from blocks that this broker takes from the store."""

    def __init__(self, allocator: ProducerIdAllocator) -> None:
        self._allocator = allocator

    def next_producer_id(self) -> ProducerId:
        """An id that was never given out. Raises CoordinatorNotAvailable while the store does not answer."""
        try:
            return self._allocator.next()
        except StoreError as error:
            raise CoordinatorNotAvailable(f"no producer ids can be had at the moment: {error}") from error
