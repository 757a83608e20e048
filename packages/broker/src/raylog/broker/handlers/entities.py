"""What the handlers of cold APIs share: kio's request in, kio's response out, whatever happens in between.

Kafka's versions differ by fields. A handler names all fields of the newest version; :func:`make` leaves out
those that the request's version does not have yet.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cache
from types import ModuleType
from typing import Any, Generic, TypeVar

from kio.index import load_payload_module
from kio.static.constants import EntityType

from raylog.broker.events import EventLog
from raylog.broker.handlers.awaited import Awaited, Wake, nobody
from raylog.broker.handlers.context import DelayedReply, Ports, Reply, RequestContext
from raylog.protocol.errors import ErrorCode, RaylogError, code_of
from raylog.protocol.wire.messages import decode_request, encode_response

log = EventLog(__name__)

T = TypeVar("T")

Decide = Callable[[RequestContext, Any, Ports], Any]
"""Request entity to response entity, or to a :class:`Later`."""

Refuse = Callable[[RequestContext, Any, RaylogError], Any]
"""The response that tells of one error for everything that was asked."""


def types_of(ctx: RequestContext) -> ModuleType:
    """kio's module of response types for the request's API and version."""
    return _types(ctx.api_key, ctx.version)


@cache
def _types(api_key: int, version: int) -> ModuleType:
    return load_payload_module(api_key, version, EntityType.response)


@cache
def _field_names(entity: Any) -> frozenset[str]:
    return frozenset(field.name for field in fields(entity))


def make(entity: Any, **values: Any) -> Any:
    """An ``entity`` of those ``values`` that its version has."""
    known = _field_names(entity)
    return entity(**{name: value for name, value in values.items() if name in known})


def throttle(ctx: RequestContext) -> timedelta:
    """How long the quota asks the client to wait."""
    return timedelta(milliseconds=ctx.throttle_ms)


def timeout_ms(request: Any) -> int:
    """How long the client lets its request take."""
    return in_ms(request.timeout)


def in_ms(time: timedelta) -> int:
    """Whole milliseconds, as the wire has it."""
    return int(time.total_seconds() * 1000)


def told(result: object) -> dict[str, Any]:
    """The fields that say what became of one thing that was asked: ``result`` is its error, or anything else."""
    if isinstance(result, RaylogError):
        return {"error_code": code_of(result), "error_message": str(result)}
    return {"error_code": ErrorCode.none, "error_message": None}


def failure(error: Exception, ctx: RequestContext, what: str) -> RaylogError:
    """``error`` if it is one of ours; else it is logged as a defect and stands for UNKNOWN_SERVER_ERROR."""
    if isinstance(error, RaylogError):
        return error
    counters = ctx.connection.counters
    counters.defects[ctx.api_key] = counters.defects.get(ctx.api_key, 0) + 1
    log.exception("request met a defect of the broker", doing=what, client_id=ctx.client_id, listener=ctx.listener)
    return RaylogError(f"{what} failed in the broker, see its log: {error}")


A = TypeVar("A", bound=Awaited)


class InFuture(Awaited):
    """What somebody else does, who does it all the same when nobody waits any more."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future
        self.result = future.result
        self._wake: Wake = nobody

    def is_over(self) -> bool:
        return self._future.done()

    def notify(self, wake: Wake) -> None:
        self._wake = wake
        self._future.add_done_callback(self._come)

    def abandon(self) -> None:
        self._wake = nobody  # the future may live on for long, and who waited should not

    def _come(self, _: Future[Any]) -> None:
        self._wake()


@dataclass(frozen=True, slots=True)
class Later(Generic[A]):
    """A response that follows from something to come; where that fails, so does the request."""

    what: A
    respond: Callable[[A], Any]
    """From what has come to the response entity."""


def later(future: Future[T], respond: Callable[[T], Any]) -> Later[InFuture]:
    """A response that follows from the future's result."""
    return Later(InFuture(future), lambda what: respond(what.result()))


class DelayedResponse(DelayedReply):
    """A reply that follows from something to come."""

    __slots__ = ("_finish", "_what")

    def __init__(self, what: Awaited, finish: Callable[[], bytes]) -> None:
        self._what = what
        self._finish = finish

    @property
    def deadline_s(self) -> float:
        return self._what.deadline_s

    def is_over(self) -> bool:
        return self._what.is_over()

    def notify(self, wake: Wake) -> None:
        self._what.notify(wake)

    def finish(self) -> bytes:
        return self._finish()

    def abandon(self) -> None:
        self._what.abandon()


def handler(decide: Decide, refuse: Refuse) -> Callable[[RequestContext, memoryview, Ports], Reply]:
    """The bytes-to-bytes handler around ``decide``. Its failure is an error code, never a dead connection.

    Raises InvalidRequest for a body that cannot be parsed: there is nothing to answer to.
    """

    def handle(ctx: RequestContext, body: memoryview, ports: Ports) -> Reply:
        request = decode_request(ctx.api_key, ctx.version, body)

        def attempt(step: Callable[[], Any]) -> Any:
            try:
                return step()
            except Exception as error:  # noqa: BLE001 (whatever it is, the client gets an answer)
                return refuse(ctx, request, failure(error, ctx, type(request).__name__))

        def finish(response: Any) -> bytes:
            if isinstance(response, Later):
                came = response
                response = attempt(lambda: came.respond(came.what))
            return encode_response(ctx.api_key, ctx.version, ctx.correlation_id, response)

        response = attempt(lambda: decide(ctx, request, ports))
        if isinstance(response, Later) and not response.what.is_over():
            return DelayedResponse(response.what, lambda: finish(response))
        return finish(response)

    return handle
