"""Records are deleted while a replica joins the ISR, and then its leader is gone.

A deletion is answered when all members of the ISR have deleted. A replica that joins meanwhile may have them still, and
leads next.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from raylog.protocol.ids import TopicPartition

from .fault import CONTROLLER, FOLLOWERS, ITS_LEADER, Fault

if TYPE_CHECKING:
    from .world import World

SHARE = 0.05
"""Of the runs have this."""
DESCRIPTIONS = {
    "trim": "the first records of a partition are deleted, again and again for {length} ms (share {rate:.2f})"
}
EVERY_MS = 60
LASTS_MS = 1_000
SOME = 0.02
"""Not all are deleted: a follower that begins with none of a producer's records does not know the producer."""
AWAY_MS = (50, 200, 600)
STRIKES = ("kill", "kill", "crash", "pause", "isolate")
AFTER_MS = (0, 5, 20, 50, 100, 200)


def draw(random: Random, begin: int, end: int) -> list[Fault]:
    """The plan of one run, often an empty one. Nobody produces meanwhile: fetches wait, and so each replica hears at
    another time what is deleted.
    """
    if random.random() > SHARE:
        return []
    faults: list[Fault] = []
    for _ in range(random.choice((1, 2, 4))):
        at, which, away = random.randint(begin, end), random.randrange(len(FOLLOWERS)), random.choice(AWAY_MS)
        back, after = min(at + away, end), random.choice(AFTER_MS)
        faults += [
            Fault(at, "quiet", CONTROLLER, away + LASTS_MS),
            Fault(at, "kill", FOLLOWERS[which], away),
            Fault(back, "trim", CONTROLLER, LASTS_MS, which, SOME),
            Fault(back, random.choice(STRIKES), ITS_LEADER, 600, moment="grows", after=after),
        ]
    return faults


def trim(world: World, tp: TopicPartition, share: float, until: int) -> None:
    """Delete a share of what there is of ``tp``, again and again."""

    def delete() -> None:
        if world.engine.now < until and not world.is_healed and tp in world.tps:
            world.delete_records(tp, share)
            world.at(world.engine.now + EVERY_MS, delete)

    delete()
