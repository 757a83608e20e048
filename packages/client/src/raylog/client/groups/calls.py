"""◆ How a group's consumer calls its user, and waits, in a thread as well as in an event loop.

What it does is a generator of :class:`Call`: one sequence for both. A thread, or a loop, takes it by :class:`Steps`,
and makes each call in its own way; what a call raises is thrown back into the sequence, so that ``try`` and ``finally``
there mean what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Generic, NamedTuple, TypeVar

from raylog.client.network.guards import OneUser

T = TypeVar("T")


class Call(NamedTuple):
    """Something to be done before the sequence goes on."""

    make: Callable[[], object]
    waits: bool
    """For another thread, or ZooKeeper: not to be made in an event loop. Else it is the user's code, which may use the
    consumer meanwhile."""


Calls = Generator[Call, None, T]


class Steps(Generic[T]):
    """A sequence under way."""

    def __init__(self, calls: Calls[T]) -> None:
        self._calls = calls
        self._raised: BaseException | None = None
        self.answer: T
        """Of the sequence, once :meth:`next` has answered None."""

    def next(self) -> Call | None:
        """The call to make now; None at the end. Raises what the sequence raises."""
        raised, self._raised = self._raised, None
        try:
            return next(self._calls) if raised is None else self._calls.throw(raised)
        except StopIteration as end:
            self.answer = end.value
            return None

    def raised(self, error: BaseException) -> None:
        """The call has raised it: the sequence says what becomes of that."""
        self._raised = error


def made_here(calls: Calls[T], user: OneUser) -> T:
    """Make all calls in this thread, which is the ``user``; what the sequence answers. Raises what it raises."""
    steps = Steps(calls)
    while (call := steps.next()) is not None:
        try:
            if call.waits:
                call.make()
            else:
                user.lent(call.make)
        except BaseException as error:  # noqa: BLE001 (the sequence gets it)
            steps.raised(error)
    return steps.answer
