"""◆ What a client knows of its cluster: brokers, topics, leaders.

One owner updates it from Metadata responses (version 12); everyone else reads :attr:`Metadata.view`, which is
replaced whole, never changed. A leader epoch lower than the known one comes from a broker that lags, and its
leader is not taken (KIP-320); which id of a topic counts: see ``topic_ids``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.types import TopicName as KioTopicName

from raylog.client.network.topic_ids import TopicIds
from raylog.client.results import BrokerDescription, PartitionDescription, TopicDescription
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.protocol.errors import RaylogError, exception_for
from raylog.protocol.ids import (
    NO_LEADER,
    NO_TOPIC_ID,
    BrokerId,
    LeaderEpoch,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)


def backoff_ms(failures: int, first_ms: int, longest_ms: int) -> int:
    """The pause after the ``failures``-th failure in a row: doubling, bounded."""
    return min(longest_ms, first_ms << min(max(failures - 1, 0), 20))


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster at one moment. ``errors`` has the topics that were asked for and that have none of their
    own."""

    cluster_id: str = ""
    controller: BrokerId = NO_LEADER
    brokers: Mapping[int, BrokerDescription] = field(default_factory=dict)
    topics: Mapping[str, TopicDescription] = field(default_factory=dict)
    led: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Per topic the partitions that have a leader."""
    errors: Mapping[str, RaylogError] = field(default_factory=dict)
    version: int = 0

    def topic_id(self, topic: str) -> TopicId:
        """NO_TOPIC_ID while the topic is not known."""
        known = self.topics.get(topic)
        return NO_TOPIC_ID if known is None else known.topic_id

    def leader_of(self, tp: TopicPartition) -> tuple[BrokerId, LeaderEpoch]:
        """Leader and its epoch; -1 and -1 while nobody is known to lead."""
        topic = self.topics.get(tp.topic)
        if topic is None or tp.partition >= len(topic.partitions):
            return NO_LEADER, LeaderEpoch(-1)
        partition = topic.partitions[tp.partition]
        return partition.leader, partition.leader_epoch


class Metadata:
    """When to ask for metadata, and what came of it.

    ``read`` answers the topics that are read now: they are asked for as long as they are, deleted ones too. All others
    are asked for until nobody has waited for them, or sent to them, for ``max_idle_ms``, or until they turn out to be
    deleted. With ``allow_auto_create`` brokers may create what somebody waits for: then that is asked for alone, so
    that no other topic that was deleted is made anew.
    """

    def __init__(
        self,
        read: Callable[[], Iterable[str]] = tuple,
        *,
        max_age_ms: int = 300_000,
        max_idle_ms: int = 0,
        backoff_ms: int = 100,
        backoff_max_ms: int = 1_000,
        allow_auto_create: bool = False,
    ) -> None:
        self.view = ClusterView()
        self.whole_answers = 0
        """How many answers about all topics that are kept have come."""
        self._ids = TopicIds()
        self._read = read
        self._used: dict[str, int] = {}
        """When each was used last. The owner reads it while others add to it: copy it to go through it."""
        self._awaited: dict[str, None] = {}
        """Those that somebody waits for and that were not asked for since: that need not wait."""
        self._max_age_ms = max_age_ms
        self._max_idle_ms = max_idle_ms
        self._backoff = (backoff_ms, backoff_max_ms)
        self._allow_auto_create = allow_auto_create
        self._needed = True
        self._failures = 0
        self._asked = False
        self._asked_alone: frozenset[str] | None = None
        """The topics that the last request was about; None: all that are kept."""
        self._taken: list[str] = []
        """Those that somebody waited for, and that it asked for."""
        self._last_ms = -1
        """When the last answer came or the last try failed; -1 before the first."""
        self._whole_ms = 0
        """When the last answer about all that are kept came."""

    def want(self, topics: Iterable[str], now_ms: int = 0) -> None:
        """Somebody waits for these topics: ask for those that are not known. Raises InvalidTopic for a name that no
        topic can have.
        """
        for name in topics:
            if name not in self.view.topics:
                check_topic_name(name)
                self._used[name] = now_ms
                self._awaited[name] = None

    def used(self, topic: str, now_ms: int) -> None:
        """Records are sent to the topic: it is asked for, and no reason to create it."""
        self._used[topic] = now_ms

    def need_update(self, topic: str | None = None) -> None:
        """Something failed in a way that fresh metadata may heal, of ``topic`` perhaps; what is fresher than the
        backoff is not asked again."""
        self._needed = True
        if topic is not None:
            self._used.setdefault(topic, self._last_ms)

    def due_in_ms(self, now_ms: int) -> int:
        """How long until the next request should go out: 0 means now."""
        if self._asked:
            return self._max_age_ms
        if self._last_ms < 0 or (self._awaited and not self._failures):
            return 0
        if self._needed or self._awaited:
            return max(0, self._last_ms + backoff_ms(self._failures, *self._backoff) - now_ms)
        return max(0, self._whole_ms + self._max_age_ms - now_ms)

    def request(self, now_ms: int = 0) -> MetadataRequest:
        """The request to send now."""
        self._asked = True
        awaited, kept = set(self._awaited), self._kept(now_ms)
        is_due = self._needed or now_ms >= self._whole_ms + self._max_age_ms
        may_create = self._allow_auto_create and bool(awaited) and not (is_due and self._asked_alone)
        if may_create and not kept <= awaited:
            self._asked_alone = frozenset(awaited)
        else:
            self._asked_alone = None
            self._needed = False
        self._taken = list(awaited) if may_create or not self._allow_auto_create else []
        for name in self._taken:
            self._awaited.pop(name, None)
        names = sorted(awaited if may_create else awaited | kept)
        return MetadataRequest(
            topics=tuple(MetadataRequestTopic(topic_id=None, name=KioTopicName(name)) for name in names),
            allow_auto_topic_creation=may_create,
            include_topic_authorized_operations=False,
        )

    def _kept(self, now_ms: int) -> set[str]:
        """The topics to know of: those that are read, and those that were used of late."""
        for name, used_ms in self._used.copy().items():
            if used_ms + self._max_idle_ms < now_ms:
                self._used.pop(name, None)
        return {*self._read(), *list(self._used)}

    def on_failure(self, now_ms: int) -> None:
        """The request got no answer."""
        self._asked = False
        self._failures += 1
        self._last_ms = now_ms
        self._needed = self._needed or self._asked_alone is None
        self._awaited.update(dict.fromkeys(self._taken))
        self._taken = []

    def on_response(self, response: MetadataResponse, now_ms: int) -> None:
        """Take the answer in. Topics without leaders, or with a passing error, are asked for again after a pause; one
        that is not there and not read, once somebody waits for it.
        """
        self._asked = False
        self._taken = []
        self._last_ms = now_ms
        read = set(self._read())
        before = self.view
        topics: dict[str, TopicDescription] = {}
        errors: dict[str, RaylogError] = {}
        if self._asked_alone is None:
            self._whole_ms = now_ms
            self.whole_answers += 1
        else:
            topics = {name: topic for name, topic in before.topics.items() if name not in self._asked_alone}
            errors = {name: error for name, error in before.errors.items() if name not in self._asked_alone}
        incomplete = is_gone = False
        for entry in response.topics:
            name = entry.name or ""
            if entry.error_code is not ErrorCode.none:
                errors[name] = exception_for(entry.error_code.value, f"topic {name!r}")
                if name not in read and entry.error_code is ErrorCode.unknown_topic_or_partition:
                    is_gone = True
                    self._used.pop(name, None)
                else:
                    incomplete |= entry.error_code.retriable
                continue
            known = before.topics.get(name)
            topic = _topic(entry, known)
            if not self._ids.takes(name, topic.topic_id):
                incomplete = True
                if known is not None:
                    topics[name] = known
                continue
            topics[name] = topic
            incomplete |= any(partition.leader < 0 for partition in topic.partitions)
        self.view = ClusterView(
            cluster_id=response.cluster_id or "",
            controller=BrokerId(response.controller_id),
            brokers={
                broker.node_id: BrokerDescription(BrokerId(broker.node_id), broker.host, broker.port, broker.rack)
                for broker in response.brokers
            },
            topics=topics,
            led={name: _led(topic) for name, topic in topics.items()},
            errors=errors,
            version=before.version + 1,
        )
        if self._asked_alone is None:
            self._ids.keep({*topics, *read, *list(self._used)})
        for name in topics:
            self._awaited.pop(name, None)
        self._failures = self._failures + 1 if incomplete or is_gone else 0
        if incomplete:
            self._needed = True

    def is_kept(self, topic: str) -> bool:
        """Whether it was used of late."""
        return topic in self._used

    def refused(self, topic: str, topic_id: TopicId) -> None:
        """A broker that was asked for the topic of that id knows none: the id may be a former one."""
        self._ids.refused(topic, topic_id)

    def take_hint(
        self,
        tp: TopicPartition,
        topic_id: TopicId,
        leader: BrokerId,
        epoch: LeaderEpoch,
        brokers: Mapping[int, BrokerDescription],
    ) -> bool:
        """Take a leader that is newer than the known one (KIP-951). False when it isn't, is at no known place, or leads
        a partition of another topic than ``topic_id`` was when the broker was asked."""
        before = self.view
        topic = before.topics.get(tp.topic)
        if topic is None or topic.topic_id != topic_id or tp.partition >= len(topic.partitions) or leader < 0:
            return False
        if epoch <= topic.partitions[tp.partition].leader_epoch or leader not in {**before.brokers, **brokers}:
            return False
        partitions = list(topic.partitions)
        partitions[tp.partition] = partitions[tp.partition]._replace(leader=leader, leader_epoch=epoch)
        topic = topic._replace(partitions=tuple(partitions))
        self.view = replace(
            before,
            brokers={**before.brokers, **brokers},
            topics={**before.topics, tp.topic: topic},
            led={**before.led, tp.topic: _led(topic)},
            version=before.version + 1,
        )
        return True


def _led(topic: TopicDescription) -> tuple[int, ...]:
    return tuple(partition.partition for partition in topic.partitions if partition.leader >= 0)


def _topic(entry: MetadataResponseTopic, before: TopicDescription | None) -> TopicDescription:
    topic_id = TopicId(entry.topic_id) if entry.topic_id is not None else NO_TOPIC_ID
    known = before.partitions if before is not None and before.topic_id == topic_id else ()
    partitions = []
    for found in sorted(entry.partitions, key=lambda partition: partition.partition_index):
        index = found.partition_index
        fresh = _partition(found)
        if index < len(known) and known[index].leader_epoch > fresh.leader_epoch >= 0:
            fresh = known[index]
        partitions.append(fresh)
    return TopicDescription(TopicName(entry.name or ""), topic_id, tuple(partitions), entry.is_internal)


def _partition(found: MetadataResponsePartition) -> PartitionDescription:
    return PartitionDescription(
        PartitionIndex(found.partition_index),
        BrokerId(found.leader_id),
        LeaderEpoch(found.leader_epoch),
        tuple(BrokerId(replica) for replica in found.replica_nodes),
        tuple(BrokerId(replica) for replica in found.isr_nodes),
    )
