"""How fast moves may copy (KIP-73): set before they begin, taken away when they are over.

The rate counts for every broker, and slows down only the replicas that a topic's settings name. Where the command dies
in between, both stay; ``raylog topics reassign --clear-throttle`` takes them away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from raylog import client
from raylog.client.cli.topics.reassign_plan import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    Move,
    throttled_replicas,
)
from raylog.protocol.errors import UnknownTopicOrPartition
from raylog.protocol.ids import TopicPartition


def set_throttle(
    admin: client.Admin,
    moves: Iterable[Move],
    under_way: Mapping[TopicPartition, client.PartitionReassignment],
    rate: int,
) -> None:
    """Let these moves, and others that are under way in their topics, copy ``rate`` bytes/s per broker at most."""
    every = {tp: Move(tp, moving.origin, moving.target) for tp, moving in under_way.items()}
    chosen = {move.tp: move for move in moves}
    topics = {tp.topic for tp in chosen}
    throttled = throttled_replicas(move for move in (every | chosen).values() if move.tp.topic in topics)
    admin.alter_broker_configs(None, {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)})
    for topic, settings in throttled.items():
        admin.alter_topic_configs(topic, settings)


def clear_throttle(admin: client.Admin, topics: Iterable[str]) -> list[str]:
    """Take the throttle from those of the topics in which nothing is being moved, and the rate when nothing is at all.

    The topics that still have moves, for which it stays. A topic that was deleted has no throttle any more.
    """
    under_way = {tp.topic for tp in admin.list_partition_reassignments()}
    for topic in set(topics) - under_way:
        with suppress(UnknownTopicOrPartition):
            _clear(admin, topic)
    if not under_way:
        rates = [
            entry.name for entry in admin.describe_broker_configs(None) if entry.name in (LEADER_RATE, FOLLOWER_RATE)
        ]
        if rates:
            admin.alter_broker_configs(None, dict.fromkeys(rates))
    return sorted(under_way)


def _clear(admin: client.Admin, topic: str) -> None:
    names = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
    ours = [entry.name for entry in admin.describe_topic_configs(topic) if entry.name in names and not entry.is_default]
    if ours:
        admin.alter_topic_configs(topic, dict.fromkeys(ours))


def is_throttled(admin: client.Admin) -> bool:
    """Whether a rate is set for all brokers."""
    return any(entry.name in (LEADER_RATE, FOLLOWER_RATE) for entry in admin.describe_broker_configs(None))
