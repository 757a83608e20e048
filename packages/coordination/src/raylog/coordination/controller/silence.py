"""Brokers that do not answer the controller though their sessions live: cut off from it, or hanging.

Such a broker cannot have its ISRs changed where it leads, and whoever else leads cannot do without it while it may
believe that it leads (``controller.handovers``): acks=all would wait for as long as it is so. Hence the incarnation
of a silent broker is ended, as if its session had lapsed, unless it leads what nobody else can lead. It registers anew,
and leads nothing and is in no such ISR before it can be reached: so that happens once, not over and over. Until it
answers it is registered and *fenced* (``ClusterState.fenced``): nothing new is given to it.

But it may be the controller that is cut off. So it ends no incarnation unless more than half of the brokers, itself
among them, answered lately: one that is cut off misses one broker a moment before the next. When it hears fewer than
half, it resigns: another one may hear more. Where it is just half, as of two brokers, nobody can tell who is cut off,
and no incarnation is ended.

The controller's own broker may hang while the controller's thread goes on: nobody else would notice. So where it does
not answer and another one does, the controller resigns, and the next one judges that broker as any other.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from raylog.coordination.controller.events import Fence
from raylog.coordination.metadata.model import ClusterState, PartitionState
from raylog.protocol.ids import NO_LEADER, BrokerId, TopicPartition


class Verdict(NamedTuple):
    """What silence means."""

    resigns: str = ""
    """Why the controller should."""
    dead: tuple[Fence, ...] = ()
    """To be taken for dead."""


def judge(
    state: ClusterState,
    silent: AbstractSet[BrokerId],
    doubtful: AbstractSet[BrokerId],
    unheard: AbstractSet[BrokerId],
    successor: Callable[[TopicPartition, PartitionState], BrokerId],
) -> Verdict:
    """``silent``: brokers that have not answered the controller for long, its own perhaps among them. ``doubtful``:
    those that have not for half that time. ``unheard``: those that have not answered in their present incarnation, so
    that there is nothing in it to be ended. ``successor``: which broker would lead if a partition's leader died.
    """
    everybody, others = len(state.brokers), state.brokers.keys() - {state.controller_id}
    if state.controller_id in silent and others - silent - unheard:
        return Verdict("its own broker does not answer")
    silent = silent & others
    if len(silent) * 2 > everybody:
        return Verdict("it reaches too few brokers")
    if not silent or len(doubtful & others) * 2 >= everybody:
        return Verdict()
    irreplaceable = silent | {NO_LEADER}
    alone = {
        partition.leader
        for tp, partition in state.partitions()
        if partition.leader in silent
        and partition.isr == (partition.leader,)
        and successor(tp, partition) in irreplaceable
    }
    useless = silent - unheard - alone  # it leads nothing, and groups wait for it
    dead = sorted(b for b in silent if b in useless or _is_waited_for(state, b, silent))
    return Verdict(dead=tuple(Fence(broker, state.brokers[broker].epoch) for broker in dead))


def _is_waited_for(state: ClusterState, broker: BrokerId, silent: AbstractSet[BrokerId]) -> bool:
    """Whether some ISR names the broker and one that is heard."""
    heard = state.brokers.keys() - silent
    return any(broker in partition.isr and not heard.isdisjoint(partition.isr) for _, partition in state.partitions())
