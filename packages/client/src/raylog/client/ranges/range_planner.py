"""Asks brokers what a plan of ranges needs: which partitions there are, what they hold, and who leads them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from raylog.client.admin import Admin
from raylog.client.ranges.host_addresses import HostAddresses
from raylog.client.ranges.offset_ranges import EARLIEST, LATEST, AtTime, LogBounds, OffsetSpec, Selection, check_named
from raylog.client.results import TopicDescription
from raylog.protocol.errors import OffsetOutOfRange, UnknownTopicOrPartition
from raylog.protocol.ids import BrokerId, Offset, TimestampMs, TopicId, TopicName, TopicPartition


class Selected(NamedTuple):
    """What a selection stands for now."""

    leaders: Mapping[TopicPartition, BrokerId]
    """All partitions, in order, and who leads them; -1 while nobody does."""
    topic_ids: Mapping[TopicName, TopicId]


def select(admin: Admin, selection: Selection) -> Selected:
    """The partitions that ``selection`` stands for; a pattern may match none, and never matches internal topics.

    Raises UnknownTopicOrPartition for a topic or partition that is not there.
    """
    topics = _topics(admin, selection)
    leaders = {
        TopicPartition(topic.name, partition.partition): partition.leader
        for topic in topics
        for partition in topic.partitions
    }
    if selection.partitions:
        missing = [tp for tp in selection.partitions if tp not in leaders]
        if missing:
            raise UnknownTopicOrPartition(
                f"there is no partition {missing[0]}: see which there are (`raylog topics describe`)"
            )
        leaders = {tp: leaders[tp] for tp in selection.partitions}
    return Selected(dict(sorted(leaders.items())), {topic.name: topic.topic_id for topic in topics})


def _topics(admin: Admin, selection: Selection) -> list[TopicDescription]:
    if selection.pattern is None:
        names = selection.topics or sorted({tp.topic for tp in selection.partitions})
        return [_described(admin, name) for name in names]
    matching = re.compile(selection.pattern)
    return [t for t in admin.list_topics() if not t.is_internal and matching.fullmatch(t.name)]


def _described(admin: Admin, name: TopicName | str) -> TopicDescription:
    try:
        return admin.describe_topic(name)
    except UnknownTopicOrPartition as error:
        raise UnknownTopicOrPartition(
            f"there is no topic {name!r}: create it (`raylog topics create`), or see which there are (`raylog topics "
            "list`)"
        ) from error


def log_bounds(
    admin: Admin, partitions: Iterable[TopicPartition], *, isolation_level: int = 0
) -> dict[TopicPartition, LogBounds]:
    """What every partition holds now for consumers of that ``isolation.level``, as on the wire."""
    wanted = list(partitions)
    first = admin.list_offsets(dict.fromkeys(wanted, EARLIEST))
    last = admin.list_offsets(dict.fromkeys(wanted, LATEST), isolation_level=isolation_level)
    return {tp: LogBounds(first[tp].offset, last[tp].offset) for tp in wanted}


def offsets_at(
    admin: Admin, option: str, spec: OffsetSpec | AtTime, partitions: Iterable[TopicPartition], *, or_latest: bool
) -> OffsetSpec:
    """``spec`` in offsets, where it is in times; ``option`` is its name in error messages.

    Where no record is so young: LATEST with ``or_latest``, else OffsetOutOfRange. Raises ValueError when times are
    given for other partitions than these.
    """
    if not isinstance(spec, AtTime):
        return spec
    times: Mapping[TopicPartition, TimestampMs]
    if isinstance(spec.times, Mapping):
        check_named(option, spec.times, dict.fromkeys(partitions))
        times = spec.times
    else:
        times = dict.fromkeys(partitions, spec.times)
    found: dict[TopicPartition, Offset] = {}
    for tp, answer in admin.list_offsets({tp: int(time) for tp, time in times.items()}).items():
        if answer.offset < 0 and not or_latest:
            raise OffsetOutOfRange(
                f"{option}: {tp} has no record at or after {times[tp]} ms; choose an earlier time, or let such "
                "partitions start at their end (startingOffsetsByTimestampStrategy=latest)"
            )
        found[tp] = answer.offset if answer.offset >= 0 else LATEST
    return found


def leader_hosts(
    admin: Admin, leaders: Mapping[TopicPartition, BrokerId], addresses: HostAddresses
) -> dict[TopicPartition, tuple[str, ...]]:
    """Per partition its leader's advertised host and the host's address, by which schedulers know nodes; none where
    nobody leads."""
    brokers = admin.describe_cluster().brokers
    names = addresses.names(broker.host for broker in brokers)
    hosts = {broker.broker_id: names[broker.host] for broker in brokers}
    return {tp: hosts.get(leader, ()) for tp, leader in leaders.items()}
