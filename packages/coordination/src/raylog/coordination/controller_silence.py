"""Brokers that do not answer the controller though their sessions live: cut off from it, or hanging.

Such a broker cannot have its ISRs changed where it leads, and whoever else leads cannot do without it while it may
believe that it leads (``controller_handovers``): acks=all would wait for as long as it is so. Hence a broker that is
silent is fenced, as if its session had lapsed, where somebody else is in sync. It registers anew, and leads nothing and
is in no such ISR before it can be reached: so it is fenced once, not over and over.

But it may be the controller that is cut off. So it fences nobody unless it hears more than half of the brokers, itself
among them; and when it hears fewer than half, it resigns: another one may hear more. Where it is just half, as of two
brokers, nobody can tell who is cut off, and nothing is done.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NamedTuple

from raylog.coordination.controller_events import Fence
from raylog.coordination.model import ClusterState
from raylog.protocol.ids import BrokerId


class Verdict(NamedTuple):
    """What silence means."""

    is_isolated: bool = False
    """The controller is, and should resign."""
    dead: tuple[Fence, ...] = ()
    """To be taken for dead."""


def judge(state: ClusterState, silent: AbstractSet[BrokerId]) -> Verdict:
    """``silent``: brokers that have not answered the controller for long; it hears itself in any case."""
    silent = silent & state.brokers.keys() - {state.controller_id}
    heard = len(state.brokers) - len(silent)
    if not silent or heard * 2 == len(state.brokers):
        return Verdict()
    if heard * 2 < len(state.brokers):
        return Verdict(is_isolated=True)
    dead = sorted(broker for broker in silent if _is_waited_for(state, broker, silent))
    return Verdict(dead=tuple(Fence(broker, state.brokers[broker].epoch) for broker in dead))


def _is_waited_for(state: ClusterState, broker: BrokerId, silent: AbstractSet[BrokerId]) -> bool:
    """Whether some ISR names the broker and one that is heard."""
    heard = state.brokers.keys() - silent
    return any(broker in partition.isr and not heard.isdisjoint(partition.isr) for _, partition in state.partitions())
