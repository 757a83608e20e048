"""Requests to the controller that are not answered yet: decided or not, known to all brokers or not, in time or not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from raylog.coordination.controller.events import (
    ElectionRequested,
    PartitionsCreateRequested,
    ReassignmentRequested,
    Reply,
    Result,
    TopicCreateRequested,
    TopicDeleteRequested,
)
from raylog.coordination.controller.peers import Peers
from raylog.protocol.errors import InvalidRequest, NotController, RaylogError, RequestTimedOut

__all__ = ["Request", "Requests", "Result", "Waiting", "named_twice", "refuse"]

Request = (
    TopicCreateRequested | TopicDeleteRequested | PartitionsCreateRequested | ElectionRequested | ReassignmentRequested
)


@dataclass(slots=True)
class Waiting:
    """A request without its answer. ``results`` once decided; sent when all brokers have ``revision``."""

    request: Request
    results: tuple[Result, ...] | None = None
    revision: int = -1

    @property
    def size(self) -> int:
        """How many results there are to be."""
        return _size(self.request)


class Requests:
    """Those that wait, in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Request) -> Waiting:
        waiting = Waiting(request)
        self._waiting.append(waiting)
        return waiting

    def answer_decided(self, peers: Peers) -> list[Reply]:
        """Those that are decided, and whose outcome every live broker has acknowledged."""
        done = [each for each in self._waiting if each.results is not None and peers.all_have(each.revision)]
        self._waiting = [each for each in self._waiting if each not in done]
        return [Reply(each.request.token, each.results or ()) for each in done]

    def answer_late(self, now_ms: int) -> list[Reply]:
        """Those whose deadline is over: what failed is told, the rest goes on and is RequestTimedOut."""
        done = [each for each in self._waiting if each.request.deadline_ms <= now_ms]
        self._waiting = [each for each in self._waiting if each not in done]
        late = RequestTimedOut("not done, or not known to all brokers, within the request's time; it goes on")
        return [
            Reply(
                each.request.token,
                tuple(
                    result if isinstance(result, RaylogError) else late
                    for result in each.results or (late,) * each.size
                ),
            )
            for each in done
        ]

    def answer_all(self) -> list[Reply]:
        """The mandate is over: what is decided is told, the rest is NotController."""
        waiting, self._waiting = self._waiting, []
        refusal = NotController("this broker is no longer the controller: ask the new one")
        return [Reply(each.request.token, each.results or (refusal,) * each.size) for each in waiting]


def named_twice(request: Request) -> dict[int, InvalidRequest]:
    """The places of what a request names more than once: it is not clear which is meant."""
    names: list[object]
    match request:
        case TopicCreateRequested() | PartitionsCreateRequested():
            names = [topic.name for topic in request.topics]
        case ReassignmentRequested():
            names = [each.tp for each in request.partitions]
        case TopicDeleteRequested() | ElectionRequested():
            return {}  # the second finds it done
    times = Counter(names)
    return {
        index: InvalidRequest(f"{name} is in the request more than once")
        for index, name in enumerate(names)
        if times[name] > 1
    }


def refuse(request: Request) -> Reply:
    """The answer of a broker that is not the controller."""
    refusal = NotController("this broker is not the controller: ask the one that Metadata names")
    return Reply(request.token, (refusal,) * _size(request))


def _size(request: Request) -> int:
    if isinstance(request, ElectionRequested | ReassignmentRequested):
        return len(request.partitions)
    return len(request.topics)
