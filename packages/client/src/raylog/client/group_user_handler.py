"""The handler that a user gives a group: a function, or a class that is made once in each member's process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from raylog.client.group_batches import HandlerBatch
from raylog.client.group_handler_config import Guarantee, HandlerOptions
from raylog.protocol.errors import InvalidConfig
from raylog.protocol.ids import TopicPartition


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

    def __call__(self, batch: HandlerBatch) -> None:
        self._handler(batch.payload())

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where to read from, for the partitions of which the user's object says so."""
        answer = self._call("on_assigned", partitions)
        return {} if answer is None else {TopicPartition(*tp): offset for tp, offset in answer.items()}

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._call("on_revoked", partitions)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._call("on_lost" if hasattr(self._handler, "on_lost") else "on_revoked", partitions)

    def close(self) -> None:
        self._call("close")

    def _call(self, name: str, *arguments: Any) -> Any:
        method = getattr(self._handler, name, None)
        return None if method is None else method(*arguments)


def check_handler(handler: Any, options: HandlerOptions) -> None:
    """InvalidConfig when it can't be called, or when exactly_once has nobody to learn offsets from."""
    kind = _kind(handler)
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
