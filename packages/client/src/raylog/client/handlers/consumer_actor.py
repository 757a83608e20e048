"""The Ray shell around one member of a group with a handler.

The member runs in a thread of its own, so that calls are answered while a handler works. What Ray does, and what
follows: an exception in ``__init__`` is final, so none leaves it; a killed process is started again with the same
argument, and comes to the group as a new member, since its process remembers nothing.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import ray

from raylog.client.handlers.plan import GroupPlan
from raylog.client.handlers.runner import MemberStatus
from raylog.coordination.host.loops import Loops
from raylog.protocol.ids import TopicPartition

CALLS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class MemberReport:
    """What a consumer actor tells of itself."""

    status: MemberStatus
    node_id: str
    """Ray's name of the node that it runs on."""
    pid: int
    handling_s: float
    """How long the handler has not returned; 0.0 while it is not running. More than a few seconds: see where it
    hangs, for after max.poll.interval.ms others get its partitions."""

    @property
    def owned(self) -> list[TopicPartition]:
        """Its partitions, in order."""
        return sorted(self.status.owned)


class ConsumerActor:
    """One member of one group."""

    def __init__(self, plan: GroupPlan) -> None:
        """Begin to take part. Never raises; :meth:`describe` tells what is in the way."""
        self._plan = plan
        self._runner = plan.runner()
        self._thread = Loops().once("member", self._runner.run)

    def describe(self) -> MemberReport:
        """What it does, and where."""
        has_ended = not self._thread.is_alive  # asked first: behind its end the status is the last one
        status = self._runner.status
        if has_ended:
            status = status.of_ended()
        handling_s = time.monotonic() - status.handling_since if status.handling is not None else 0.0
        return MemberReport(status, ray.get_runtime_context().get_node_id(), os.getpid(), handling_s)

    def drain(self) -> None:
        """Report also where reading stands where nothing is left: see HandlerRunner.drain."""
        self._runner.drain()

    def stop(self, timeout_s: float) -> bool:
        """Finish the batch in hand, commit, leave. False: not within ``timeout_s``, the handler has not returned."""
        self._runner.stop()
        self._thread.join(timeout_s)
        return not self._thread.is_alive

    def __repr__(self) -> str:
        """What Ray's dashboard and logs call this actor."""
        return f"Consumer({self._plan.group})"


_remote: Any = ray.remote
consumer_actor_class: Any = _remote(max_restarts=-1, max_task_retries=0, max_concurrency=CALLS_AT_ONCE, num_cpus=0)(
    ConsumerActor
)
"""ConsumerActor as Ray makes it: started again for ever when its process dies; what it needs is up to the user."""
