"""◆ How a group's consumer calls its user, and waits, in a thread as well as in an event loop.

What it does is a generator of :class:`Call`: one sequence for both. Who drives it makes each call in its own way, and
throws back into the sequence what a call raises, so that ``try`` and ``finally`` there mean what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import nullcontext
from typing import NamedTuple, TypeVar

from raylog.client.guards import OneUser

T = TypeVar("T")


class Call(NamedTuple):
    """Something to be done before the sequence goes on."""

    make: Callable[[], object]
    waits: bool
    """For another thread, or ZooKeeper: not to be made in an event loop. Else it is the user's code, which may use the
    consumer meanwhile."""


Calls = Generator[Call, None, T]


def made_here(calls: Calls[T], user: OneUser) -> T:
    """Make all calls in this thread, which is the ``user``; what the sequence answers. Raises what it raises."""
    try:
        call = next(calls)
        while True:
            try:
                with nullcontext() if call.waits else user.lent():
                    call.make()
            except BaseException as error:  # noqa: BLE001 (the sequence says what becomes of it)
                call = calls.throw(error)
            else:
                call = next(calls)
    except StopIteration as end:
        answer: T = end.value
        return answer
