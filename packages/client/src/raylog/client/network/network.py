"""A pool of connections that knows its cluster: it keeps the metadata fresh and finds brokers by id.

One thread owns a Network, as it owns the pool in it. Producer, consumer and admin client each have one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import cast

from kio.schema.metadata.v12.response import MetadataResponse
from kio.static.protocol import RequestPayload

from raylog.client.config.client import (
    BOOTSTRAP_SERVERS,
    METADATA_MAX_AGE_MS,
    RETRY_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
)
from raylog.client.config.texts import parse_address
from raylog.client.network.connection import Address, Reply
from raylog.client.network.metadata import Metadata
from raylog.client.network.pool import Pool
from raylog.client.network.resolver import LookUp, system_look_up
from raylog.client.results import BrokerDescription
from raylog.coordination.host.clocks import monotonic_ms
from raylog.protocol.errors import BrokerNotAvailable, RaylogError
from raylog.protocol.ids import BrokerId, LeaderEpoch, TopicId, TopicPartition
from raylog.protocol.logs import Logger
from raylog.protocol.settings import Settings
from raylog.protocol.wire.messages import decode_response
from raylog.protocol.wire.primitives import NodeEndpoint

log = Logger(__name__)

_METADATA_CONTEXT = object()
CONNECT_POLL_MS = 50
"""How long to wait before asking again whether a broker can be connected to."""


class Network:
    """``read``, ``max_idle_ms`` and ``allow_auto_create``: of which topics to keep metadata, see Metadata."""

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Iterable[str]] = tuple,
        *,
        max_idle_ms: int = 0,
        allow_auto_create: bool = False,
        look_up: LookUp = system_look_up,
    ) -> None:
        self._bootstrap = [Address(*parse_address(text)) for text in settings[BOOTSTRAP_SERVERS]]
        self.pool = Pool(settings, look_up=look_up)
        self._warned: set[Address] = set()
        """Advertised addresses that the log was told to be out of reach."""
        self.metadata = Metadata(
            read,
            max_age_ms=settings[METADATA_MAX_AGE_MS],
            max_idle_ms=max_idle_ms,
            backoff_ms=settings[RETRY_BACKOFF_MS],
            backoff_max_ms=settings[RETRY_BACKOFF_MAX_MS],
            allow_auto_create=allow_auto_create,
        )

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Around the rest of its owner's constructor: what that raises closes it."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def address_of(self, broker_id: int) -> Address | None:
        """Where the broker listens; None while it isn't known."""
        broker = self.metadata.view.brokers.get(broker_id)
        return Address(broker.host, broker.port) if broker else None

    def leader_address(self, tp: TopicPartition) -> Address | None:
        """Where the partition's leader listens; None, and fresh metadata is asked for, while nobody leads
        it."""
        address = self.address_of(self.metadata.view.leader_of(tp)[0])
        if address is None:
            self.metadata.need_update(tp.topic)
            if tp.topic in self.metadata.view.topics:
                self.pool.log.warning(
                    ("leaderless", tp.topic),
                    "nobody leads %s now, as brokers say; it is waited for",
                    tp,
                )
        return address

    def ready(self, address: Address) -> bool:
        """As :meth:`Pool.ready`; where nobody can be reached, fresh metadata may know a better address."""
        if self.pool.ready(address):
            return True
        problem = self.pool.problem(address)
        if problem is not None:
            self.metadata.need_update()
            self._warn(address, problem)
        return False

    def reachable(self, broker_id: int) -> Address | None:
        """Where the broker listens, if it is connected, or being connected to; None, and fresh metadata is asked for,
        when it isn't known or its last connection failed."""
        address = self.address_of(broker_id)
        pool = self.pool
        if address is not None and (pool.ready(address) or pool.connecting_ms(address) is not None):
            return address
        self.metadata.need_update()
        return None

    def _warn(self, address: Address, problem: RaylogError) -> None:
        """Once for each broker whose address was never reached: the most common mistake in setting up a cluster."""
        if address in self._warned or address in self._bootstrap or self.pool.was_connected(address):
            return
        for broker in self.metadata.view.brokers.values():
            if address == (broker.host, broker.port):
                self._warned.add(address)
                log.warning(
                    "broker %d advertises %s, where it cannot be reached from here (%s); the cluster was found at %s: "
                    "check advertised.listeners of that broker, that its host name is known here, and firewalls and "
                    "port mappings on the way",
                    broker.broker_id,
                    address,
                    problem,
                    ", ".join(map(str, self._bootstrap)),
                )

    def any_ready(self) -> Address | None:
        """Some broker that a request can be sent to now; None when a connection is still being made, or none
        can be. One that doesn't take the connection for a moment does not keep us from the next."""
        known = [Address(broker.host, broker.port) for broker in self.metadata.view.brokers.values()]
        candidates = known + [address for address in self._bootstrap if address not in known]
        connected = self.pool.least_loaded(candidates)
        if connected is not None:
            return connected
        for address in candidates:
            self.pool.ready(address)
            connecting_ms = self.pool.connecting_ms(address)
            if connecting_ms is not None and connecting_ms < CONNECT_POLL_MS:
                return None
        return None

    def poll(self, timeout_ms: float) -> list[Reply]:
        """As the pool's, with the metadata asked for and taken in on the way."""
        metadata, now_ms = self.metadata, monotonic_ms()
        due_ms = metadata.due_in_ms(now_ms)
        if due_ms == 0:
            address = self.any_ready()
            if address is not None:
                self.send(address, metadata.request(now_ms), _METADATA_CONTEXT)
            else:
                due_ms = CONNECT_POLL_MS
        replies = self.pool.poll(min(timeout_ms, due_ms or timeout_ms))
        others = []
        for reply in replies:
            if reply.request.context is _METADATA_CONTEXT:
                self._take_metadata(reply)
            else:
                others.append(reply)
        return others

    def wait_ms(self, timeout_ms: float) -> float:
        """For how much of ``timeout_ms`` a poll may wait, unless :meth:`Pool.fileno` becomes readable."""
        due_ms = self.metadata.due_in_ms(monotonic_ms()) or CONNECT_POLL_MS
        return self.pool.wait_ms(min(timeout_ms, due_ms))

    def take_hint(
        self,
        tp: TopicPartition,
        topic_id: TopicId,
        leader: int,
        leader_epoch: int,
        endpoints: Iterable[NodeEndpoint] = (),
    ) -> bool:
        """A broker that refused a request for the topic of that id told who leads the partition (KIP-951). True when
        that was news, and where the leader listens is known."""
        addresses = {at.node_id: BrokerDescription(BrokerId(at.node_id), at.host, at.port, at.rack) for at in endpoints}
        return self.metadata.take_hint(tp, topic_id, BrokerId(leader), LeaderEpoch(leader_epoch), addresses)

    def send(
        self, address: Address, message: RequestPayload, context: object, *, timeout_ms: int | None = None
    ) -> None:
        """Send a request of kio's type to a ready address; see :meth:`Pool.send`."""
        self.pool.send_message(address, message, context, timeout_ms=timeout_ms)

    def unreachable(self) -> BrokerNotAvailable:
        """The error for a caller who has waited for long enough: which addresses were tried, and what went
        wrong."""
        tried = ", ".join(map(str, self._bootstrap))
        problems = [str(problem) for address in self._bootstrap if (problem := self.pool.problem(address))]
        why = f" ({'; '.join(problems)})" if problems else ""
        return BrokerNotAvailable(f"no broker answers at {tried}{why}; check the addresses and that the cluster is up")

    def reset(self) -> None:
        """Close all connections, to make them anew; no answer comes to what was sent."""
        self.pool.reset()
        self.metadata.on_failure(monotonic_ms())

    def close(self) -> None:
        self.pool.close()

    def _take_metadata(self, reply: Reply) -> None:
        now_ms = monotonic_ms()
        if reply.error is not None:
            self.metadata.on_failure(now_ms)
            return
        try:
            _, response = decode_response(reply.request.api_key, reply.request.version, reply.frame)
        except RaylogError:
            self.metadata.on_failure(now_ms)
        else:
            self.metadata.on_response(cast(MetadataResponse, response), now_ms)
