"""The handler that a user gives a group: a function, or a class that is made once in each member's process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from inspect import isasyncgen, isawaitable, isgenerator
from typing import Any

from raylog.client.arguments.arguments import does_nothing_yet, offsets
from raylog.client.handlers.batches import HandlerBatch
from raylog.client.handlers.config import Guarantee, HandlerOptions
from raylog.protocol.errors import InvalidConfig
from raylog.protocol.ids import TopicPartition

_METHODS = ("on_assigned", "on_revoked", "on_lost", "close")
_WAIT_FOR_IT = "it would count as done before it is: wait for it inside of the handler (asyncio.run, ray.get, list)"


class UserHandler:
    """Calls the user's function, or the user's object with those of its methods that it has.

    ``__call__(records)`` gets a list of ConsumerRecord or an Arrow table, of one partition; returning is success.
    ``on_assigned(partitions)`` comes before their first records; a mapping that it answers says per partition from
    which offset to read. ``on_revoked(partitions)`` comes when they are given up in good order, before what was handled
    of them is committed. ``on_lost(partitions)``, or on_revoked without it, comes when they are gone already, and
    another member may have them. ``close()`` comes last. All are called by one thread.
    """

    def __init__(self, handler: Any) -> None:
        self._handler = handler() if isinstance(_kind(handler), type) else handler

    def __call__(self, batch: HandlerBatch) -> Any:
        """What the user's handler answers: see :func:`check_done`."""
        return self._handler(batch.payload())

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where to read from, for the partitions of which the user's object says so. Raises InvalidRequest for an
        answer that does not."""
        answer = self._call("on_assigned", partitions)
        return {} if answer is None else offsets("on_assigned", answer)

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._call("on_revoked", partitions)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._call("on_lost" if hasattr(self._handler, "on_lost") else "on_revoked", partitions)

    def close(self) -> None:
        self._call("close")

    def _call(self, name: str, *arguments: Any) -> Any:
        method = getattr(self._handler, name, None)
        return None if method is None else method(*arguments)


def check_done(answer: Any) -> None:
    """InvalidConfig when what a handler answered is still to be done: a coroutine, say, or a reference of Ray's."""
    if isawaitable(answer) or isgenerator(answer) or isasyncgen(answer):
        raise InvalidConfig(f"handler: it answered a {type(answer).__name__}; {_WAIT_FOR_IT}")


def check_handler(handler: Any, options: HandlerOptions) -> None:
    """InvalidConfig when it can't be called, or calling it does nothing yet, or when exactly_once has nobody to learn
    offsets from."""
    kind = _kind(handler)
    of_class = kind if isinstance(kind, type) else type(kind)
    for function in (kind, *(getattr(of_class, name, None) for name in ("__call__", *_METHODS))):
        if does_nothing_yet(function):
            raise InvalidConfig(
                f"handler: {getattr(function, '__qualname__', function)} is a coroutine or a generator; {_WAIT_FOR_IT}"
            )
    if isinstance(kind, type) and not any("__call__" in base.__dict__ for base in kind.__mro__):
        raise InvalidConfig(f"handler: class {kind.__name__} has no __call__(records)")
    if not callable(handler):
        raise InvalidConfig(f"handler: {handler!r} is neither a function nor a class")
    if options.guarantee is Guarantee.EXACTLY_ONCE and not hasattr(kind, "on_assigned"):
        raise InvalidConfig(
            "processing.guarantee=exactly_once: the handler must be a class whose on_assigned(partitions) answers "
            "which offsets its own store has"
        )


def _kind(handler: Any) -> Any:
    """What stands behind ``functools.partial``: so a class gets its arguments."""
    return handler.func if isinstance(handler, partial) else handler
