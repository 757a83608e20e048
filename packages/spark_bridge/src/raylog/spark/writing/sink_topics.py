"""What a sink asks the brokers: where its topics end, who may send, and what a batch has left in the log."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from threading import Lock

from raylog.client.admin import Admin
from raylog.client.produce.identity import new_identities
from raylog.client.produce.producer_state import MAX_EPOCH, Identity
from raylog.client.producer import Producer
from raylog.client.ranges.offset_ranges import DataLoss
from raylog.client.ranges.producer_traces import next_sequences
from raylog.client.results import TopicDescription
from raylog.protocol.errors import OffsetOutOfRange, RequestTimedOut, UnknownTopicOrPartition
from raylog.protocol.ids import LATEST, PartitionIndex, TopicName, TopicPartition
from raylog.spark.writing.sink_batch import Written
from raylog.spark.writing.sink_plan import BatchPlan, Target

CREATION_TIMEOUT_MS = 10_000
"""How long a topic that is written to for the first time may take to appear."""


class ProducerNames:
    """Producers, by ids and epochs, that no plan has named before.

    No file tells them: it may be an older copy, and a plan that used them may be deleted. They are new ids of the
    brokers, or the next epochs of those handed out here before: brokers have few producers to remember, and a task that
    still sends an older batch is fenced.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._cluster_id = ""
        self._next: list[Identity] = []

    def take(self, count: int, cluster_id: str, new: Callable[[int], list[Identity]]) -> list[Identity]:
        """So many of them, which are spent now; ``new`` gives ids that nobody has in that cluster."""
        with self._lock:
            if cluster_id != self._cluster_id:
                self._cluster_id, self._next = cluster_id, []
            missing = count - len(self._next)
            known = self._next + new(missing) if missing > 0 else self._next
            taken, rest = known[:count], known[count:]
            self._next = rest + [Identity(id_, epoch + 1) for id_, epoch in taken if epoch < MAX_EPOCH]
            return taken


class BrokerTopics:
    """:class:`~raylog.spark.writing.sink_batch.Topics` at ``bootstrap_servers``; ``names`` are the query's."""

    def __init__(self, bootstrap_servers: str, names: ProducerNames) -> None:
        self._servers = bootstrap_servers
        self._names = names

    def targets(self, topics: Collection[str]) -> dict[str, Target]:
        """See Topics."""
        with Admin(self._servers) as admin:
            described = [self._describe(admin, topic) for topic in sorted(topics)]
            ends = admin.list_offsets({tp: LATEST for topic in described for tp in _partitions(topic)})
        return {
            topic.name: Target(str(topic.topic_id), [ends[tp].offset for tp in _partitions(topic)])
            for topic in described
        }

    def _describe(self, admin: Admin, topic: str) -> TopicDescription:
        """The topic, which is created where it is not there yet and brokers create topics for who writes."""
        try:
            return admin.describe_topic(topic)
        except UnknownTopicOrPartition:
            pass
        try:
            with Producer(self._servers, max_block_ms=CREATION_TIMEOUT_MS) as producer:
                producer.partitions_for(topic)
            return admin.describe_topic(topic)
        except (RequestTimedOut, UnknownTopicOrPartition) as error:
            raise UnknownTopicOrPartition(
                f"topic {topic!r} is not there, and brokers do not create it (auto.create.topics.enable): create "
                f"it, as by `raylog topics create {topic}`, and start the query again"
            ) from error

    def new_producers(self, count: int) -> list[Identity]:
        """See Topics."""
        with Admin(self._servers) as admin:
            cluster_id = admin.describe_cluster().cluster_id
        return self._names.take(count, cluster_id, partial(new_identities, self._servers))

    def written(self, plan: BatchPlan) -> Written:
        """See Topics."""
        with Admin(self._servers) as admin:
            for topic, target in plan.targets.items():
                if str(admin.describe_topic(TopicName(topic)).topic_id) != target.topic_id:
                    raise DataLoss(
                        f"topic {topic!r} was deleted and made anew after batch {plan.batch_id} was planned, and what "
                        "it had of the batch is gone"
                    )
        try:
            return next_sequences(self._servers, plan.starts(), set(plan.files.values()))
        except OffsetOutOfRange as error:
            raise DataLoss(
                f"{error}; batch {plan.batch_id} begins there, and nobody can tell what it has written"
            ) from error


def _partitions(topic: TopicDescription) -> list[TopicPartition]:
    """Those of the topic, in order."""
    return [TopicPartition(topic.name, PartitionIndex(index)) for index in range(len(topic.partitions))]
