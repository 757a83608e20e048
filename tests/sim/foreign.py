"""What other programs, old versions and slips of the hand leave in ZooKeeper: nodes that are not ours, and values that
make no sense. Each may harm what it is about, and nothing else; a node that is not ours stays to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from raylog.coordination.metadata import group_paths, paths
from raylog.coordination.metadata.group_model import Registered
from raylog.coordination.store.port import Create, Op, Set
from raylog.protocol.ids import BrokerId, MemberId, TimestampMs, TopicName, TopicPartition

from .apart import STAYS_MS
from .fault import Fault
from .group_invariants import ACTORS, CLIENTS

if TYPE_CHECKING:
    from .world import World

DESCRIPTIONS = {
    "foreign": "another program leaves a node in zookeeper ({which})",
    "orphan": "another program leaves nodes below the topic, which is deleted then, and made anew",
    "damage": "another program damages a value in zookeeper ({which}), which is written back after {length} ms",
}
SHARE = 0.05
"""Of the runs have some."""
SHARE_GONE = 0.5
"""Of these lose a broker, which has to be replaced though they lie there."""
COUNTS = (1, 2, 4)
LENGTHS = (200, 1_500, 4_000)
NOT_JSON = b"\xffnot what it was"


def draw(random: Random, begin: int, end: int, whom: Sequence[int]) -> list[Fault]:
    """The plan of one run, often an empty one."""
    if random.random() > SHARE:
        return []
    faults: list[Fault] = []
    for _ in range(random.choice(COUNTS)):
        kind = random.choice(("foreign", "foreign", "orphan", "damage"))
        at, length = random.randint(begin, end), random.choice(LENGTHS)
        faults.append(Fault(at, kind, random.choice(whom), length, random.randrange(100)))
    if random.random() < SHARE_GONE:
        faults.append(Fault(random.randint(end - 3_000, end), "gone", random.choice(whom), STAYS_MS))
    return faults


def strange_nodes() -> Sequence[Sequence[Op]]:
    """One of these at a time."""
    strange = Registered(frozenset({TopicName("..")}), None)
    notice = paths.encode_config_change("topics/..")
    return (
        [Create(f"{paths.BROKER_IDS}/abc", b"{}")],
        [Create(f"{paths.BROKER_IDS}/77", NOT_JSON)],
        [Create(paths.topic(TopicName("empty")))],
        [Create(f"{paths.BROKER_TOPICS}/no topic", b"{}")],
        [Create(paths.CONFIG_CHANGE_PREFIX, notice, sequence=True), Create(f"{paths.CONFIG_CHANGES}/odd", NOT_JSON)],
        [Create(f"{paths.TOPIC_IDS}/odd"), Create(f"{paths.CONFIG_BROKERS}/abc", NOT_JSON)],
        [Create(f"{group_paths.CONSUMERS}/%")],
        [Create(group_paths.member(ACTORS, MemberId("~foreign")), group_paths.encode_member(strange, TimestampMs(0)))],
        [Create(group_paths.member(ACTORS, MemberId("000-foreign")), NOT_JSON)],
    )


def leave(world: World, which: int) -> None:
    """A node that means nothing."""
    nodes = strange_nodes()
    world.ensemble.write_foreign(nodes[which % len(nodes)])


def orphan(world: World, tp: TopicPartition) -> None:
    """Nodes below a topic that is about to be deleted."""
    below = (paths.topic(tp.topic), paths.topic_partitions(tp.topic), paths.partition(tp), paths.topic_config(tp.topic))
    for node in below:
        world.ensemble.write_foreign([Create(f"{node}/odd"), Create(f"{node}/odd/child")])


def damage(world: World, broker: BrokerId, tp: TopicPartition, which: int) -> Callable[[], None] | None:
    """A value makes no sense for a while; how that ends, None where there is no such value."""
    values = (
        paths.partition_state(tp),
        paths.topic(tp.topic),
        paths.topic_config(tp.topic),
        paths.raylog_broker(broker),
        paths.CONTROLLER_EPOCH,
        group_paths.assignment(ACTORS),
        group_paths.state(CLIENTS),
        group_paths.claim(CLIENTS),
        group_paths.group(CLIENTS),
    )
    path = values[which % len(values)]
    found = world.ensemble.get(path)
    if found is None:
        return None
    world.engine.note(f"zookeeper: {path} is damaged")
    world.damaged_values += 1
    world.ensemble.write_foreign([Set(path, NOT_JSON)])

    def mend() -> None:
        world.damaged_values -= 1
        now = world.ensemble.get(path)
        if now is not None and now.data == NOT_JSON:
            world.engine.note(f"zookeeper: {path} is written back")
            world.ensemble.write_foreign([Set(path, found.data)])
            world.compare_with_store()

    return mend
