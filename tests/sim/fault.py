"""What a plan is made of: one thing that goes wrong, and whom it strikes. ``faults`` has all kinds of them."""

from __future__ import annotations

from typing import NamedTuple

CONTROLLER = 0
"""As a broker's number: the controller of that moment."""
LEADERS = (-1, -2)
"""The leaders of the first and the last partition."""
FOLLOWERS = (-3, -4)
"""The last replica of each of these that does not lead."""
SUBJECT = -5
"""Whom the moment is about; the controller without one."""
ITS_LEADER = -6
"""The leader of the partition that the moment is about."""
COORDINATOR = -7
"""The broker that coordinates the group of clients."""
NAMES = {
    CONTROLLER: "<controller>",
    LEADERS[0]: "<leader of the first>",
    LEADERS[1]: "<leader of the last>",
    FOLLOWERS[0]: "<follower of the first>",
    FOLLOWERS[1]: "<follower of the last>",
    SUBJECT: "<that one>",
    ITS_LEADER: "<its leader>",
    COORDINATOR: "<coordinator>",
}


class Fault(NamedTuple):
    """One thing that goes wrong. ``broker``, ``other``, ``rate`` mean what ``kind`` makes of them.

    Brokers are numbers or roles (CONTROLLER, LEADERS, ...): who has the role when it begins. With a ``moment`` it
    begins ``after`` milliseconds after the first such moment since ``at``.
    """

    at: int
    kind: str
    broker: int
    length: int
    other: int = 0
    rate: float = 0.0
    moment: str = ""
    after: int = 0
