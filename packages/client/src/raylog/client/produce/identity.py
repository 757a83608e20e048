"""Asks the cluster for producer ids, for idempotent producers (KIP-98)."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.static.primitive import i32Timedelta

from raylog.client.network.connection import Reply
from raylog.client.network.metadata import backoff_ms
from raylog.client.network.network import Network
from raylog.client.produce.producer_state import Identity
from raylog.client.requests.calls import Calls
from raylog.coordination.host.clocks import monotonic_ms
from raylog.protocol.errors import NetworkException, RaylogError, exception_for, is_retriable
from raylog.protocol.wire.messages import decode_response

_REQUEST = InitProducerIdRequest(
    transactional_id=None, transaction_timeout=i32Timedelta.parse(timedelta(milliseconds=2**31 - 1))
)


def new_identities(bootstrap_servers: str, count: int) -> list[Identity]:
    """So many producers that nobody else is. Raises as :class:`~raylog.client.admin.Admin`."""
    calls = Calls(bootstrap_servers, {})
    try:
        return [calls.call(_REQUEST, calls.any_broker, _identity) for _ in range(count)]
    finally:
        calls.close()


def _identity(response: InitProducerIdResponse) -> Identity:
    if response.error_code is not ErrorCode.none:
        raise exception_for(response.error_code.value, "asking for a producer id")
    return Identity(response.producer_id, response.producer_epoch)


class IdentityKeeper:
    """Asks for an id for partitions that have none; ``context`` marks the replies that are for :meth:`take`."""

    def __init__(self, network: Network, backoff: tuple[int, int]) -> None:
        self.context = object()
        self._network = network
        self._backoff = backoff
        self._asked = False
        self._failures = 0
        self._again_at_ms = 0

    def ask(self) -> None:
        """Ask some broker for an id unless an answer is awaited, or a failure too fresh. Raises
        UnsupportedVersion."""
        if self._asked or monotonic_ms() < self._again_at_ms:
            return
        address = self._network.any_ready()
        if address is not None:
            self._network.send(address, _REQUEST, self.context)
            self._asked = True

    def reset(self) -> None:
        """No answer will come any more."""
        self._asked = False

    def take(self, reply: Reply) -> Identity | None:
        """The id that came, or None when it will be asked for again. Raises an error that won't pass."""
        self._asked = False
        try:
            if reply.error is not None:
                raise reply.error
            _, entity = decode_response(reply.request.api_key, reply.request.version, reply.frame)
            identity = _identity(cast(InitProducerIdResponse, entity))
        except RaylogError as error:
            if not isinstance(error, NetworkException) and not is_retriable(error):
                raise
            self._failures += 1
            self._again_at_ms = monotonic_ms() + backoff_ms(self._failures, *self._backoff)
            return None
        self._failures = 0
        return identity
