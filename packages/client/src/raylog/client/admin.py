"""The admin client: topics, configs, offsets and brokers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from threading import Lock
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self, cast

from kio.schema.create_topics.v7.request import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kio.schema.create_topics.v7.response import CreateTopicsResponse
from kio.schema.delete_topics.v5.request import DeleteTopicsRequest
from kio.schema.delete_topics.v5.response import DeleteTopicsResponse
from kio.schema.describe_cluster.v1.request import DescribeClusterRequest
from kio.schema.describe_cluster.v1.response import DescribeClusterResponse
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import DescribeConfigsResponse, DescribeConfigsResult
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.types import BrokerId as KioBrokerId
from kio.schema.types import TopicName as KioTopicName
from kio.static.primitive import i8, i16, i32, i32Timedelta
from kio.static.protocol import RequestPayload

from raylog.client.config import ADMIN_SETTINGS, DEFAULT_API_TIMEOUT_MS, RETRY_BACKOFF_MS, client_settings
from raylog.client.connection import Address, Reply
from raylog.client.fetcher import list_offsets_request, read_list_offsets, to_partitions
from raylog.client.metadata import ClusterView, Metadata
from raylog.client.network import CONNECT_POLL_MS, Network
from raylog.client.pool import monotonic_ms
from raylog.client.results import (
    BrokerDescription,
    ClusterDescription,
    ConfigEntry,
    OffsetAndTimestamp,
    TopicDescription,
)
from raylog.client.subscription import EARLIEST, LATEST
from raylog.protocol.errors import (
    BrokerNotAvailable,
    NetworkException,
    NotController,
    RaylogError,
    RequestTimedOut,
    UnknownTopicOrPartition,
    exception_for,
    is_retriable,
)
from raylog.protocol.ids import BrokerId, LeaderEpoch, Offset, TimestampMs, TopicPartition
from raylog.protocol.messages import decode_response
from raylog.protocol.settings import Setting

__all__ = ["EARLIEST", "LATEST", "Admin", "NewTopic"]

_TOPIC, _BROKER = 2, 4
_SOURCES = {1: "topic", 2: "broker (dynamic)", 3: "cluster (dynamic)", 4: "broker (static)", 5: "default"}
_SPREAD_S = 5.0
"""How long to wait for all brokers to know a new topic; they do in milliseconds unless one is down."""

_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class NewTopic(NamedTuple):
    """A topic to create; -1 takes the broker's default. ``assignments``: partition → broker ids."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = _NOTHING
    assignments: Mapping[int, Sequence[int]] = _NOTHING


class Admin:
    """Asks the cluster about itself and changes it. Safe to use from many threads, one request at a time.

    ``config`` takes Kafka's admin client settings with underscores. Every call raises BrokerNotAvailable when
    no broker answers within ``default.api.timeout.ms``, and RequestTimedOut when one answers but can't do it in time.
    """

    def __init__(self, bootstrap_servers: str | Sequence[str], **config: Any) -> None:
        settings = client_settings(ADMIN_SETTINGS, bootstrap_servers, config)
        timeout: Setting[int] = DEFAULT_API_TIMEOUT_MS
        self._timeout_s = settings[timeout] / 1_000
        self._backoff_ms = settings[RETRY_BACKOFF_MS]
        self._network = Network(settings)
        self._lock = Lock()

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        *,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create one topic; it can be used with any broker when this returns. Raises the error that fits."""
        error = self.create_topics([NewTopic(name, partitions, replication_factor, configs or {})])[name]
        if error is not None:
            raise error

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, RaylogError | None]:
        """Create several; per name, None or why it was refused."""
        asked = tuple(_creatable(topic) for topic in topics)
        request = CreateTopicsRequest(topics=asked, timeout=self._timeout(), validate_only=validate_only)
        response = cast(CreateTopicsResponse, self._call(request, self._controller))
        results = {
            result.name: _error(result.error_code.value, result.error_message or f"topic {result.name!r}")
            for result in response.topics
        }
        if not validate_only:
            self._await_everywhere([name for name, error in results.items() if error is None])
        return {str(name): error for name, error in results.items()}

    def delete_topics(self, names: Iterable[str]) -> dict[str, RaylogError | None]:
        """Delete several, with all their records; per name, None or why it was refused."""
        asked = tuple(KioTopicName(name) for name in names)
        request = DeleteTopicsRequest(topic_names=asked, timeout=self._timeout())
        response = cast(DeleteTopicsResponse, self._call(request, self._controller))
        return {
            str(result.name): _error(result.error_code.value, result.error_message or f"topic {result.name!r}")
            for result in response.responses
        }

    def list_topics(self) -> list[TopicDescription]:
        """All topics, by name."""
        view = self._metadata(
            MetadataRequest(topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False)
        )
        return sorted(view.topics.values())

    def describe_topic(self, name: str) -> TopicDescription:
        """One topic. Raises UnknownTopicOrPartition."""
        view = self._metadata(_metadata_of([name]))
        if name in view.topics:
            return view.topics[name]
        raise view.errors.get(name) or UnknownTopicOrPartition(f"topic {name!r}: the broker doesn't tell of it")

    def describe_topic_configs(self, name: str) -> list[ConfigEntry]:
        """The settings of one topic, by name. Raises UnknownTopicOrPartition."""
        return self._configs(_TOPIC, name, self._network.any_ready)

    def describe_broker_configs(self, broker_id: int) -> list[ConfigEntry]:
        """The settings of one broker, which it is asked itself, by name."""
        return self._configs(_BROKER, str(broker_id), lambda: self._network.address_of(broker_id))

    def describe_cluster(self) -> ClusterDescription:
        """Cluster id, controller and live brokers, by id."""
        request = DescribeClusterRequest(include_cluster_authorized_operations=False)
        response = cast(DescribeClusterResponse, self._call(request, self._network.any_ready))
        error = _error(response.error_code.value, response.error_message or "describing the cluster")
        if error is not None:
            raise error
        brokers = sorted(
            BrokerDescription(BrokerId(broker.broker_id), broker.host, broker.port, broker.rack)
            for broker in response.brokers
        )
        return ClusterDescription(response.cluster_id, BrokerId(response.controller_id), tuple(brokers))

    def list_offsets(self, at: Mapping[tuple[str, int], int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets at EARLIEST (-2), LATEST (-1) or a timestamp in ms (offset -1 when nothing is as late)."""
        left = dict(zip(to_partitions(at), at.values(), strict=True))
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        deadline = time.monotonic() + self._timeout_s
        while left:
            view = self._metadata(_metadata_of({tp.topic for tp in left}))
            by_leader: dict[Address, dict[TopicPartition, int]] = {}
            problems: list[RaylogError] = []
            for tp, timestamp in left.items():
                broker = view.brokers.get(view.leader_of(tp)[0])
                if broker is None:
                    problems.append(view.errors.get(tp.topic) or _leaderless(view, tp))
                else:
                    by_leader.setdefault(Address(broker.host, broker.port), {})[tp] = timestamp
            for address, wanted in by_leader.items():
                problems += self._ask_leader(address, wanted, found)
            left = {tp: timestamp for tp, timestamp in left.items() if tp not in found}
            if left:
                self._give_up_or_rest(problems, deadline)
        return found

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._network.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask_leader(
        self,
        address: Address,
        wanted: dict[TopicPartition, int],
        found: dict[TopicPartition, OffsetAndTimestamp],
    ) -> list[RaylogError]:
        """Ask one leader, once; what went wrong for the partitions that aren't in ``found`` then."""
        try:
            with self._lock:
                reply = self._try(list_offsets_request(wanted), lambda: address, self._deadline())
                answers = read_list_offsets(reply)
        except NetworkException as error:
            return [error]
        problems = []
        for tp, answer in answers.items():
            if isinstance(answer, RaylogError):
                problems.append(answer)
            else:
                offset, timestamp, epoch = answer
                found[tp] = OffsetAndTimestamp(Offset(offset), TimestampMs(timestamp), LeaderEpoch(epoch))
        return problems

    def _give_up_or_rest(self, problems: list[RaylogError], deadline: float) -> None:
        """Raise an error that won't pass, or that has not in time; else wait a little."""
        hopeless = [
            error for error in problems if isinstance(error, UnknownTopicOrPartition) or not is_retriable(error)
        ]
        if hopeless:
            raise hopeless[0]
        if time.monotonic() >= deadline:
            raise problems[0] if problems else RequestTimedOut("asking for offsets")
        with self._lock:
            self._rest()

    def _configs(self, kind: int, name: str, where: Callable[[], Address | None]) -> list[ConfigEntry]:
        resource = DescribeConfigsResource(resource_type=i8(kind), resource_name=name, configuration_keys=None)
        request = DescribeConfigsRequest(resources=(resource,), include_synonyms=True)
        (result,) = cast(DescribeConfigsResponse, self._call(request, where)).results
        error = _error(result.error_code.value, result.error_message or f"configs of {name!r}")
        if error is not None:
            raise error
        return sorted(_entries(result))

    def _await_everywhere(self, names: list[str]) -> None:
        """Wait until every broker that can be reached knows leaders for all partitions of the topics."""
        if not names:
            return
        deadline = time.monotonic() + min(_SPREAD_S, self._timeout_s)
        unsure = [Address(broker.host, broker.port) for broker in self._network.metadata.view.brokers.values()]
        while unsure and time.monotonic() < deadline:
            address = unsure[0]
            try:
                with self._lock:
                    reply = self._try(_metadata_of(names), lambda: address, deadline)  # noqa: B023
                    view = _view(_entity(reply))
                    if not all(name in view.topics and _all_led(view.topics[name]) for name in names):
                        self._rest()
                        continue
            except (NetworkException, BrokerNotAvailable):
                pass  # a broker that is down learns of the topic when it comes back
            unsure.pop(0)

    def _metadata(self, request: MetadataRequest) -> ClusterView:
        return _view(self._call(request, self._network.any_ready))

    def _controller(self) -> Address | None:
        return self._network.address_of(self._network.metadata.view.controller)

    def _call(self, request: RequestPayload, where: Callable[[], Address | None]) -> Any:
        """The answer to ``request`` of the broker that ``where`` tells, tried again while connections
        fail."""
        deadline = self._deadline()
        with self._lock:
            while True:
                try:
                    entity = _entity(self._try(request, where, deadline))
                except NetworkException:
                    if time.monotonic() >= deadline:
                        raise
                else:
                    if not _refused_by_non_controller(entity) or time.monotonic() >= deadline:
                        return entity
                self._network.metadata.need_update()
                self._rest()

    def _try(self, request: RequestPayload, where: Callable[[], Address | None], deadline: float) -> Reply:
        """The reply of the broker that ``where`` tells, once it can be reached. Raises NetworkException."""
        network = self._network
        while (address := where()) is None or not network.pool.ready(address):
            if time.monotonic() >= deadline:
                raise network.unreachable()
            if address is None:
                network.metadata.need_update()
            network.poll(CONNECT_POLL_MS)
        context = object()
        network.send(address, request, context)
        while True:
            for reply in network.poll(1_000):
                if reply.request.context is context:
                    if reply.error is not None:
                        raise reply.error
                    return reply

    def _rest(self) -> None:
        """Let the retry backoff pass, with the metadata taken care of."""
        until_ms = monotonic_ms() + self._backoff_ms
        while (left_ms := until_ms - monotonic_ms()) > 0:
            self._network.poll(left_ms)

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_s

    def _timeout(self) -> i32Timedelta:
        return i32Timedelta.parse(timedelta(seconds=self._timeout_s))


def _entity(reply: Reply) -> Any:
    return decode_response(reply.request.api_key, reply.request.version, reply.frame)[1]


def _view(response: object) -> ClusterView:
    metadata = Metadata()
    metadata.on_response(cast(MetadataResponse, response), 0)
    return metadata.view


def _metadata_of(names: Iterable[str]) -> MetadataRequest:
    topics = tuple(MetadataRequestTopic(topic_id=None, name=KioTopicName(name)) for name in sorted(names))
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False)


def _error(code: int, message: str) -> RaylogError | None:
    return exception_for(code, message) if code else None


def _leaderless(view: ClusterView, tp: TopicPartition) -> RaylogError:
    topic = view.topics.get(tp.topic)
    if topic is None or tp.partition >= len(topic.partitions):
        return UnknownTopicOrPartition(f"{tp}: there is no such partition")
    return BrokerNotAvailable(f"{tp}: no live broker leads it; start broker {topic.partitions[tp.partition].replicas}")


def _all_led(topic: TopicDescription) -> bool:
    return all(partition.leader >= 0 for partition in topic.partitions)


def _refused_by_non_controller(entity: object) -> bool:
    results = getattr(entity, "topics", ()) if isinstance(entity, CreateTopicsResponse) else ()
    if isinstance(entity, DeleteTopicsResponse):
        results = entity.responses
    return any(isinstance(_error(result.error_code.value, ""), NotController) for result in results)


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=KioTopicName(topic.name),
        num_partitions=i32(topic.partitions),
        replication_factor=i16(topic.replication_factor),
        assignments=tuple(
            CreatableReplicaAssignment(
                partition_index=i32(partition), broker_ids=tuple(KioBrokerId(broker) for broker in brokers)
            )
            for partition, brokers in topic.assignments.items()
        ),
        configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()),
    )


def _entries(result: DescribeConfigsResult) -> Iterable[ConfigEntry]:
    for config in result.configs:
        yield ConfigEntry(
            name=config.name,
            value=None if config.is_sensitive else config.value,
            is_default=config.config_source == 5,
            is_read_only=config.read_only,
            source=_SOURCES.get(config.config_source, "unknown"),
            synonyms={synonym.name: synonym.value for synonym in config.synonyms},
        )
