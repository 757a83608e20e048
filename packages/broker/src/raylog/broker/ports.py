"""The handlers' ports that end at the controller (topics) and in the store (producer ids)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.types import TopicName as KioTopicName
from kio.static.primitive import i16, i32, i32Timedelta

from raylog.broker.controller_runtime import ControllerRuntime
from raylog.broker.events import EventLog
from raylog.coordination.controller_events import CreatedTopic, NewTopic
from raylog.coordination.model import ClusterState
from raylog.coordination.producer_ids import ProducerIdAllocator
from raylog.coordination.store import StoreError
from raylog.protocol.errors import CoordinatorNotAvailable, NotController, RaylogError
from raylog.protocol.ids import ProducerId, TopicId, TopicName
from raylog.protocol.messages import encode_request

__all__ = ["ControllerTopics", "StoredProducerIds"]

logger = EventLog(__name__)

AUTO_CREATE_TIMEOUT_S = 10.0


class ControllerTopics:
    """Creates and deletes topics through this broker's controller; NotController where it is not elected."""

    def __init__(self, controller: ControllerRuntime, state: Callable[[], ClusterState]) -> None:
        self._controller = controller
        self._state = state
        self._asked: set[TopicName] = set()
        self._lock = threading.Lock()

    def create_topics(
        self, topics: Sequence[NewTopic], *, timeout_ms: int, validate_only: bool
    ) -> Sequence[CreatedTopic | RaylogError]:
        """One result per topic, in order. Raises NotController."""
        results = self._controller.create_topics(topics, timeout_ms=timeout_ms, validate_only=validate_only)
        return [result for result in results if not isinstance(result, str)]

    def delete_topics(
        self, topics: Sequence[TopicName | TopicId], *, timeout_ms: int
    ) -> Sequence[TopicName | RaylogError]:
        """One result per topic, in order. Raises NotController."""
        results = self._controller.delete_topics(topics, timeout_ms=timeout_ms)
        return [result for result in results if not isinstance(result, CreatedTopic)]

    def auto_create(self, topics: Sequence[TopicName]) -> None:
        """Ask the controller, wherever it is, for topics with default settings; does not wait or raise."""
        with self._lock:
            fresh = [topic for topic in topics if topic not in self._asked]
            self._asked.update(fresh)
        if fresh:
            threading.Thread(target=self._auto_create, args=(fresh,), name="auto-create", daemon=True).start()

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
            logger.info("controller not reached for automatic topics", controller=endpoint, reason=error)


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
