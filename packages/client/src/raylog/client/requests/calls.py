"""How an admin client's requests reach the broker that must answer them, and are tried again while that may help."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from threading import Lock
from typing import Any, TypeVar, cast

from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.types import TopicName as KioTopicName
from kio.static.primitive import i32Timedelta
from kio.static.protocol import RequestPayload

from raylog.client.config.client import (
    ADMIN_SETTINGS,
    DEFAULT_API_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    RETRY_BACKOFF_MS,
    client_settings,
)
from raylog.client.network.connection import Address, Reply
from raylog.client.network.guards import ForkGuard
from raylog.client.network.metadata import ClusterView, Metadata
from raylog.client.network.network import CONNECT_POLL_MS, Network
from raylog.client.requests.admin_groups import COORDINATOR_ERRORS, find_coordinators, read_find_coordinators
from raylog.client.results import BrokerDescription, TopicDescription
from raylog.coordination.host.clocks import monotonic_ms
from raylog.protocol.errors import (
    BrokerNotAvailable,
    NetworkException,
    NotController,
    RaylogError,
    RequestTimedOut,
    UnknownTopicOrPartition,
    is_retriable,
)
from raylog.protocol.ids import BrokerId, TopicPartition
from raylog.protocol.settings import Setting
from raylog.protocol.wire.messages import decode_response

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")
Where = Callable[[], Address | None]
"""Answers the address to send to, or None while it isn't known."""

_ANSWER_GRACE_S = 1.0
"""How much longer than the call an answer may take: a broker uses the time up and then says what was not done in it."""
_CONNECT_S = 1.0
"""How long to wait for a connection to a broker where asking again may name another one."""
_PASSING = (*COORDINATOR_ERRORS, BrokerNotAvailable, NetworkException, RequestTimedOut)
"""What is said of a group while its coordinator moves, and where asking the next one helps."""
_SPREAD_S = 5.0
"""How long to wait for all brokers to know a new topic; they do in milliseconds unless one is down."""


class Calls:
    """One request at a time, from any thread. Raises what :class:`raylog.client.admin.Admin` tells."""

    def __init__(self, bootstrap_servers: Any, config: Mapping[str, Any]) -> None:
        settings = client_settings(ADMIN_SETTINGS, bootstrap_servers, config)
        timeout: Setting[int] = DEFAULT_API_TIMEOUT_MS
        self._timeout_s = settings[timeout] / 1_000
        self._request_timeout_ms = settings[REQUEST_TIMEOUT_MS]
        self._backoff_ms = settings[RETRY_BACKOFF_MS]
        self._network = Network(settings)
        self._lock = Lock()
        self._fork = ForkGuard("admin client")
        self._closed = False

    @property
    def timeout(self) -> i32Timedelta:
        """What a request allows its broker."""
        return i32Timedelta.parse(timedelta(seconds=self._timeout_s))

    def any_broker(self) -> Address | None:
        """Some broker that can be reached."""
        return self._network.any_ready()

    def controller(self) -> Address | None:
        """The controller."""
        return self._network.address_of(self._network.metadata.view.controller)

    def broker(self, broker_id: int) -> Where:
        """That broker; make it anew for each call. BrokerNotAvailable once fresh metadata does not know it."""
        metadata = self._network.metadata
        stale = metadata.view.version

        def address() -> Address | None:
            known = metadata.view
            if broker_id not in known.brokers and known.version > stale:
                alive = ", ".join(map(str, sorted(known.brokers)))
                raise BrokerNotAvailable(f"broker {broker_id} is not up; these are: {alive}")
            return self._network.address_of(broker_id)

        return address

    def close(self) -> None:
        """Close all connections; in a forked child they are its parent's."""
        if self._fork.forked:
            return
        with self._lock:
            if not self._closed:
                self._closed = True
                self._network.close()

    def call(self, request: RequestPayload, where: Where, read: Callable[[Any], T]) -> T:
        """What ``read`` makes of the answer, tried again while connections fail and while it raises NotController.

        ``read`` raises what hits the request as a whole.
        """
        deadline = self._deadline()
        with self._alone():
            while True:
                try:
                    return read(_entity(self._try(request, where, deadline)))
                except (NetworkException, NotController):
                    if time.monotonic() >= deadline:
                        raise
                self._network.metadata.need_update()
                self._rest()

    def metadata(self, topics: Iterable[str] | None) -> ClusterView:
        """The cluster with these topics, or with all (None)."""
        return self.call(metadata_request(topics), self.any_broker, _view)

    def ask_leaders(
        self,
        questions: Mapping[TopicPartition, Q],
        request: Callable[[dict[TopicPartition, Q]], RequestPayload],
        read: Callable[[Reply], Mapping[TopicPartition, A | RaylogError]],
    ) -> dict[TopicPartition, A]:
        """One answer per partition, each asked of its leader, leaders anew while the error may pass.

        Raises the first error that won't, or that has not in time.
        """
        left = dict(questions)
        found: dict[TopicPartition, A] = {}
        deadline = self._deadline()
        while left:
            view = self.metadata({tp.topic for tp in left})
            by_leader: dict[Address, dict[TopicPartition, Q]] = {}
            problems: list[RaylogError] = []
            for tp, question in left.items():
                broker = view.brokers.get(view.leader_of(tp)[0])
                if broker is None:
                    problems.append(view.errors.get(tp.topic) or _leaderless(view, tp))
                else:
                    by_leader.setdefault(Address(broker.host, broker.port), {})[tp] = question
            for address, asked in by_leader.items():
                problems += self._ask_one(address, request(asked), read, found)
            left = {tp: question for tp, question in left.items() if tp not in found}
            if left:
                self._give_up_or_rest(problems, deadline)
        return found

    def ask_coordinators(
        self,
        groups: Iterable[str],
        request: Callable[[tuple[str, ...]], RequestPayload],
        read: Callable[[BrokerId, Any], Mapping[str, A | RaylogError]],
    ) -> dict[str, A | RaylogError]:
        """What each group's coordinator answers, or why it refuses; coordinators anew while that may pass.

        A request may arrive twice, when the answer to the first was lost.
        """
        left = tuple(dict.fromkeys(groups))
        found: dict[str, A | RaylogError] = {}
        deadline = self._deadline()
        while left:
            answers: dict[str, A | RaylogError] = {
                group: RaylogError(f"group {group!r}: a broker left it out of its answer") for group in left
            }
            by_broker: dict[BrokerDescription, list[str]] = {}
            coordinators = self.call(find_coordinators(left), self.any_broker, read_find_coordinators)
            for group, coordinator in coordinators.items():
                if isinstance(coordinator, RaylogError):
                    answers[group] = coordinator
                else:
                    by_broker.setdefault(coordinator, []).append(group)
            for broker, asked in by_broker.items():
                answers |= self._ask_coordinator(broker, tuple(asked), request, read, deadline)
            if time.monotonic() >= deadline:
                return found | answers
            found |= {group: answer for group, answer in answers.items() if not isinstance(answer, _PASSING)}
            left = tuple(group for group in left if group not in found)
            if left:
                with self._alone():
                    self._rest()
        return found

    def _ask_coordinator(
        self,
        broker: BrokerDescription,
        groups: tuple[str, ...],
        request: Callable[[tuple[str, ...]], RequestPayload],
        read: Callable[[BrokerId, Any], Mapping[str, A | RaylogError]],
        deadline: float,
    ) -> Mapping[str, A | RaylogError]:
        """Ask one coordinator, once."""
        address = Address(broker.host, broker.port)
        try:
            return self._ask_broker(address, request(groups), partial(read, broker.broker_id), deadline)
        except _PASSING as error:
            return dict.fromkeys(groups, error)

    def ask_brokers(self, request: RequestPayload, read: Callable[[Any], A]) -> list[A]:
        """What all live brokers answer, each for itself; all are asked anew when one goes away meanwhile.

        Raises why the last try failed when none succeeds in time.
        """
        deadline = self._deadline()
        while True:
            brokers = self.metadata(()).brokers.values()
            try:
                return [
                    self._ask_broker(Address(broker.host, broker.port), request, read, deadline) for broker in brokers
                ]
            except _PASSING:
                if time.monotonic() >= deadline:
                    raise
            with self._alone():
                self._rest()

    def _ask_broker(self, address: Address, request: RequestPayload, read: Callable[[Any], A], deadline: float) -> A:
        with self._alone():
            self._connect(lambda: address, min(deadline, time.monotonic() + _CONNECT_S))
            return read(_entity(self._exchange(address, request, deadline)))

    def _ask_one(
        self,
        address: Address,
        request: RequestPayload,
        read: Callable[[Reply], Mapping[TopicPartition, A | RaylogError]],
        found: dict[TopicPartition, A],
    ) -> list[RaylogError]:
        """Ask one leader, once; what went wrong for the partitions that aren't in ``found`` then."""
        try:
            with self._alone():
                answers = read(self._try(request, lambda: address, self._deadline()))
        except NetworkException as error:
            return [error]
        problems = []
        for tp, answer in answers.items():
            if isinstance(answer, RaylogError):
                problems.append(answer)
            else:
                found[tp] = answer
        return problems

    def _give_up_or_rest(self, problems: list[RaylogError], deadline: float) -> None:
        """Raise an error that won't pass, or that has not in time; else wait a little."""
        hopeless = [
            error for error in problems if isinstance(error, UnknownTopicOrPartition) or not is_retriable(error)
        ]
        if hopeless:
            raise hopeless[0]
        if time.monotonic() >= deadline:
            raise problems[0] if problems else RequestTimedOut("a leader left partitions out of its answers")
        with self._alone():
            self._rest()

    def await_everywhere(self, partitions: Mapping[str, int]) -> None:
        """Wait until every broker that can be reached knows leaders for so many partitions of the topics, or more."""
        if not partitions:
            return
        deadline = time.monotonic() + min(_SPREAD_S, self._timeout_s)
        unsure = [Address(broker.host, broker.port) for broker in self._network.metadata.view.brokers.values()]
        while unsure and time.monotonic() < deadline:
            address = unsure[0]
            try:
                with self._alone():
                    view = _view(_entity(self._try(metadata_request(partitions), lambda: address, deadline)))  # noqa: B023
                    if not all(_has(view.topics.get(name), count) for name, count in partitions.items()):
                        self._rest()
                        continue
            except (NetworkException, BrokerNotAvailable):
                pass  # a broker that is down learns of the topic when it comes back
            unsure.pop(0)

    def _alone(self) -> AbstractContextManager[object]:
        """``with`` around one exchange. Raises RaylogError in a forked child, where nobody may be left to give the lock
        back."""
        self._fork.check()
        return self._lock

    def _try(self, request: RequestPayload, where: Where, deadline: float) -> Reply:
        """The reply of the broker that ``where`` tells, once it can be reached. Raises NetworkException."""
        return self._exchange(self._connect(where, deadline), request, deadline)

    def _connect(self, where: Where, deadline: float) -> Address:
        """The broker that ``where`` tells, once it can be reached. Raises BrokerNotAvailable when it can't in time."""
        network = self._network
        if self._closed:
            raise RaylogError("the admin client is closed")
        while (address := where()) is None or not network.ready(address):
            if time.monotonic() >= deadline:
                raise self._unreachable(address)
            if address is None:
                network.metadata.need_update()
            network.poll(CONNECT_POLL_MS)
        return address

    def _exchange(self, address: Address, request: RequestPayload, deadline: float) -> Reply:
        """The reply of a broker that is connected. Raises NetworkException, or RequestTimedOut without one in time."""
        network = self._network
        context = object()
        left_ms = round((deadline - time.monotonic() + _ANSWER_GRACE_S) * 1_000)
        network.send(address, request, context, timeout_ms=max(1, min(self._request_timeout_ms, left_ms)))
        while True:
            for reply in network.poll(1_000):
                if reply.request.context is context:
                    if reply.error is not None:
                        raise reply.error
                    return reply

    def _unreachable(self, address: Address | None) -> RaylogError:
        """Why nothing could be sent: that one broker can't be reached, or none."""
        problem = None if address is None else self._network.pool.problem(address)
        if problem is None:
            return self._network.unreachable()
        return BrokerNotAvailable(f"no broker answers at {address} ({problem}); check that it is up")

    def _rest(self) -> None:
        """Let the retry backoff pass, with the metadata taken care of."""
        until_ms = monotonic_ms() + self._backoff_ms
        while (left_ms := until_ms - monotonic_ms()) > 0:
            self._network.poll(left_ms)

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_s


def metadata_request(topics: Iterable[str] | None) -> MetadataRequest:
    """Ask for these topics, or for all (None), creating none."""
    asked = None
    if topics is not None:
        asked = tuple(MetadataRequestTopic(topic_id=None, name=KioTopicName(name)) for name in sorted(topics))
    return MetadataRequest(topics=asked, allow_auto_topic_creation=False, include_topic_authorized_operations=False)


def _entity(reply: Reply) -> Any:
    return decode_response(reply.request.api_key, reply.request.version, reply.frame)[1]


def _view(response: object) -> ClusterView:
    metadata = Metadata()
    metadata.on_response(cast(MetadataResponse, response), 0)
    return metadata.view


def _leaderless(view: ClusterView, tp: TopicPartition) -> RaylogError:
    topic = view.topics.get(tp.topic)
    if topic is None or tp.partition >= len(topic.partitions):
        return UnknownTopicOrPartition(f"{tp}: there is no such partition")
    return BrokerNotAvailable(f"{tp}: no live broker leads it; start broker {topic.partitions[tp.partition].replicas}")


def _has(topic: TopicDescription | None, count: int) -> bool:
    return (
        topic is not None
        and len(topic.partitions) >= count
        and all(partition.leader >= 0 for partition in topic.partitions)
    )
