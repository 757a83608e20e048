"""What a sink asks the brokers: where its topics end, who may send, and what a batch has left in the log."""

from __future__ import annotations

from collections.abc import Collection

from raylog.client.admin import Admin
from raylog.client.identity import new_identities
from raylog.client.offset_ranges import DataLoss
from raylog.client.producer import Producer
from raylog.client.producer_state import Identity
from raylog.client.producer_traces import next_sequences
from raylog.client.results import TopicDescription
from raylog.client.subscription import LATEST
from raylog.protocol.errors import OffsetOutOfRange, RequestTimedOut, UnknownTopicOrPartition
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.spark.sink_batch import Written
from raylog.spark.sink_plan import BatchPlan, Target

CREATION_TIMEOUT_MS = 10_000
"""How long a topic that is written to for the first time may take to appear."""

_AGAIN = "delete that batch's plan in the sink's location to write the whole batch again"


class BrokerTopics:
    """:class:`~raylog.spark.sink_batch.Topics` of the cluster at ``bootstrap_servers``."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers

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
        return new_identities(self._servers, count)

    def written(self, plan: BatchPlan) -> Written:
        """See Topics."""
        with Admin(self._servers) as admin:
            for topic, target in plan.targets.items():
                if str(admin.describe_topic(TopicName(topic)).topic_id) != target.topic_id:
                    raise DataLoss(
                        f"topic {topic!r} was deleted and made anew after batch {plan.batch_id} was planned, and what "
                        f"it had of the batch is gone: {_AGAIN}"
                    )
        try:
            return next_sequences(self._servers, plan.starts(), set(plan.files.values()))
        except OffsetOutOfRange as error:
            raise DataLoss(
                f"{error}; batch {plan.batch_id} begins there, and nobody can tell what it has written: {_AGAIN}, "
                "and parts of it twice if they are still there"
            ) from error


def _partitions(topic: TopicDescription) -> list[TopicPartition]:
    """Those of the topic, in order."""
    return [TopicPartition(topic.name, PartitionIndex(index)) for index in range(len(topic.partitions))]
