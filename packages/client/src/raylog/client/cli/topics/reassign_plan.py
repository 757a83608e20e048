"""◆ Which partitions are to move where: read from the command line or a file, and checked before anything is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from raylog import client
from raylog.client.cli.terminal.common import ids_of
from raylog.client.cli.terminal.json_input import a_list, a_number, a_text, an_object, parsed
from raylog.protocol.errors import InvalidReplicaAssignment, InvalidRequest, UnknownTopicOrPartition
from raylog.protocol.ids import BrokerId, PartitionIndex, TopicName, TopicPartition

Replicas = tuple[BrokerId, ...]

LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LEADER_REPLICAS, FOLLOWER_REPLICAS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"

_FORM = '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}'


class Move(NamedTuple):
    """One partition's replicas, the preferred leader first: those it has, and those it is to have."""

    tp: TopicPartition
    current: Replicas
    proposed: Replicas

    @property
    def adding(self) -> Replicas:
        """Those that have to copy it."""
        return tuple(broker for broker in self.proposed if broker not in self.current)


def broker_ids(text: str, option: str = "--replicas") -> Replicas:
    """``1,2,3`` as broker ids. Raises InvalidRequest."""
    try:
        return tuple(ids_of(text, ","))
    except ValueError:
        raise InvalidRequest(f"{option} {text!r} is not a list of broker ids such as 1,2,3") from None


def wanted_of_topic(
    topic: client.TopicDescription, partitions: Iterable[int] | None, replicas: Replicas
) -> dict[TopicPartition, Replicas]:
    """The same replicas for these partitions, or for all of the topic (None).

    For all of them each partition begins with another of the brokers, so that not one of them leads everything.
    """
    if partitions is not None:
        return {TopicPartition(topic.name, PartitionIndex(index)): replicas for index in partitions}
    turns = {index: index % len(replicas) for index in range(len(topic.partitions))}
    return {
        TopicPartition(topic.name, PartitionIndex(index)): replicas[turn:] + replicas[:turn]
        for index, turn in turns.items()
    }


def wanted_of_file(text: bytes, name: str) -> dict[TopicPartition, Replicas]:
    """What a file in the form of kafka-reassign-partitions asks for. Raises InvalidRequest."""
    wanted: dict[TopicPartition, Replicas] = {}
    try:
        for item in a_list(an_object(parsed(text), "it").get("partitions"), "partitions"):
            entry = an_object(item, "one of partitions")
            topic, index = a_text(entry.get("topic"), "topic"), a_number(entry.get("partition"), "partition")
            tp = TopicPartition(TopicName(topic), PartitionIndex(index))
            if tp in wanted:
                raise InvalidRequest(f"{name}: {tp} is named twice; leave one of them out")
            if any(log_dir != "any" for log_dir in a_list(entry.get("log_dirs", []), "log_dirs")):
                raise InvalidRequest(f'{name}: {tp}: a broker has one log directory; leave log_dirs out, or say "any"')
            replicas = a_list(entry.get("replicas"), "replicas")
            wanted[tp] = tuple(BrokerId(a_number(broker, "a replica")) for broker in replicas)
    except ValueError as error:
        raise InvalidRequest(f"{name} is not a file of moves: {error}; it must be like {_FORM}") from None
    if not wanted:
        raise InvalidRequest(f"{name} names no partition; it must be like {_FORM}")
    return wanted


def moves_of(
    wanted: Mapping[TopicPartition, Replicas],
    topics: Mapping[str, client.TopicDescription],
    under_way: Mapping[TopicPartition, client.PartitionReassignment],
    alive: Sequence[int],
) -> list[Move]:
    """What has to be moved for that, by topic and partition; what is there, or on its way there, is left out.

    Raises UnknownTopicOrPartition, and InvalidReplicaAssignment for replicas that can't be had; ``alive``: the brokers
    that are up.
    """
    moves = []
    for tp, proposed in sorted(wanted.items()):
        count = len(topics[tp.topic].partitions)
        if not 0 <= tp.partition < count:
            raise UnknownTopicOrPartition(f"there is no partition {tp}; {tp.topic} has 0 to {count - 1}")
        current: Replicas = topics[tp.topic].partitions[tp.partition].replicas
        goal = current
        if tp in under_way:
            current, goal = under_way[tp].origin, under_way[tp].target
        _check(tp, proposed, {*current, *alive}, alive)
        if proposed != goal:
            moves.append(Move(tp, current, proposed))
    return moves


def _check(tp: TopicPartition, proposed: Replicas, known: set[int], alive: Sequence[int]) -> None:
    if not proposed:
        raise InvalidReplicaAssignment(f"{tp} needs at least one replica; to end a move, use --cancel")
    for place, broker in enumerate(proposed):
        if broker in proposed[:place]:
            raise InvalidReplicaAssignment(f"{tp}: broker {broker} is named twice; each may have one replica of it")
        if broker not in known:
            up = ", ".join(map(str, sorted(alive)))
            raise InvalidReplicaAssignment(f"{tp}: broker {broker} is not up; these are: {up}")


def throttled_replicas(moves: Iterable[Move]) -> dict[TopicName, dict[str, str]]:
    """The settings that throttle these moves, per topic: those who have it send slowly, those who get it ask slowly.

    KIP-73: partition:broker, comma-separated.
    """
    leaders: dict[TopicName, list[str]] = {}
    followers: dict[TopicName, list[str]] = {}
    for move in moves:
        if move.adding:
            leaders.setdefault(move.tp.topic, []).extend(f"{move.tp.partition}:{broker}" for broker in move.current)
            followers.setdefault(move.tp.topic, []).extend(f"{move.tp.partition}:{broker}" for broker in move.adding)
    return {
        topic: {LEADER_REPLICAS: ",".join(leaders[topic]), FOLLOWER_REPLICAS: ",".join(followers[topic])}
        for topic in leaders
    }


def row_of(move: Move, sizes: Mapping[int, Mapping[TopicPartition, int]], leader: int) -> dict[str, Any]:
    """The move as commands show it; ``sizes``: bytes of the replicas that brokers tell of."""
    size = sizes.get(leader, {}).get(move.tp)
    return {
        "topic": move.tp.topic,
        "partition": move.tp.partition,
        "current": list(move.current),
        "proposed": list(move.proposed),
        "to_copy_bytes": None if size is None else size * len(move.adding),
    }
