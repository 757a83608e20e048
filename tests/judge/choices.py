"""Where raylog answers otherwise than Kafka on purpose. docs/compatibility.md tells it. Nothing else may differ."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple

from judge.verdict import Difference

__all__ = ["CHOICES", "Choice"]


class Choice(NamedTuple):
    """``where``: names of sequences, ``path``: what differs in an answer, ``ours`` and ``kafka``: what it is, ``api``:
    the API that is answered; all with ``*``.
    """

    difference: str
    why: str
    where: str = "*"
    path: str = "*"
    ours: str = "*"
    kafka: str = "*"
    api: str = "*"

    def covers(self, name: str) -> bool:
        """Whether it may explain differences of the sequence of this name."""
        return fnmatchcase(name, self.where)

    def explains(self, name: str, found: Difference) -> bool:
        return (
            self.covers(name)
            and fnmatchcase(found.path, self.path)
            and fnmatchcase(found.ours, self.ours)
            and fnmatchcase(found.kafka, self.kafka)
            and fnmatchcase(found.api, self.api)
        )


CHOICES: tuple[Choice, ...] = (
    Choice(
        "A text that is no UTF-8 ends the connection; Kafka puts � in its place.",
        "A name that nobody can send again is of no use.",
        "*not-utf8",
    ),
    Choice(
        "ApiVersions tells the APIs and features that there are.",
        "Kafka's are those of KRaft, too.",
        "ApiVersions*",
    ),
    Choice(
        "A partition that a Produce names twice is appended to twice; Kafka appends the last batch alone.",
        "What is sent is stored, or refused.",
        "Produce * topic_data*=twice",
    ),
    Choice(
        "Bytes behind the batch of a Produce are INVALID_RECORD; Kafka drops them.",
        "What is sent is stored, or refused.",
        "Produce * topic_data.partition_data.records=bytes-behind",
    ),
    Choice(
        "A Produce without records is INVALID_RECORD; Kafka never answers.",
        "A client waits for an answer.",
        "Produce * topic_data.partition_data.records=null",
    ),
    Choice(
        "Fetch tells the leader from version 12 on, to brokers with its address; Kafka from version 16, without.",
        "The field is there, and who asks the wrong broker finds the right one at once.",
        "Fetch * replica_*",
        "responses[[]].partitions[[]].current_leader.*",
    ),
    Choice(
        "Fetch tells the leader from version 12 on, to brokers with its address; Kafka from version 16, without.",
        "The field is there, and who asks the wrong broker finds the right one at once.",
        "Fetch * replica_*",
        "node_endpoints#",
    ),
    Choice(
        "A Fetch of a broker's former run is STALE_BROKER_EPOCH; Kafka answers NOT_LEADER_OR_FOLLOWER.",
        "It tells a broker that another one took its place.",
        "Fetch * replica_*=0",
    ),
    Choice(
        "A full Fetch that names a session is a full Fetch, whatever its number; Kafka fails for large ones.",
        "It ends a session that need not be there.",
        "Fetch * session_id=*",
    ),
    Choice(
        "A transactional id is TRANSACTIONAL_ID_AUTHORIZATION_FAILED, and its coordinator, too.",
        "There are no transactions yet, and no client takes this error for one that passes.",
        "InitProducerId * transactional_id=*",
    ),
    Choice(
        "A transactional id is TRANSACTIONAL_ID_AUTHORIZATION_FAILED, and its coordinator, too.",
        "There are no transactions yet, and no client takes this error for one that passes.",
        "FindCoordinator * key_type=1",
    ),
    *(
        Choice(
            "A group id of no byte, or of over 1,024 as a node's name, is INVALID_GROUP_ID; Kafka takes both.",
            "It is the name of a node.",
            where,
        )
        for where in (
            "*group_id=very-long",
            "Offset* *group_id=empty",
            "*Groups * groups*[[]0]=very-long",
            "*Groups * groups*[[]0]=empty",
            "FindCoordinator * *key*=very-long",
            "FindCoordinator * *key*=empty",
        )
    ),
    Choice(
        "A batch older than its producer's last five that is known to be there is DUPLICATE_SEQUENCE_NUMBER.",
        "It is there: nobody need send it again, as after Kafka's OUT_OF_ORDER_SEQUENCE_NUMBER.",
        "producer *",
        "responses[[]].partition_responses[[]].error_code",
        "duplicate_sequence_number",
        "out_of_order_sequence_number",
    ),
    Choice(
        "A batch with a producer id and without an epoch is INVALID_RECORD; Kafka takes it.",
        "Nothing could be told of its retries.",
        "producer *",
        "responses[[]].partition_responses[[]].error_code",
        "invalid_record",
    ),
    Choice(
        "An answer in a fetch session names a topic once; Kafka names it again where others come between.",
        "It is shorter, and says the same.",
        "session *",
        "responses#",
    ),
    Choice(
        "A member that leaves before it joined with the id that it was given starts no rebalance; in Kafka it does.",
        "The others share nothing with it.",
        "group *",
        "groups[[]].group_state",
        "*",
        "PreparingRebalance",
    ),
    Choice(
        "A group that a DescribeGroups or an OffsetFetch names twice is answered once.",
        "A small request must not have a huge answer.",
        "* groups=twice",
    ),
    Choice(
        "Authorized operations of a group have neither DESCRIBE_CONFIGS nor ALTER_CONFIGS.",
        "Groups have no settings of their own here.",
        "DescribeGroups *",
        "groups[[]].authorized_operations",
    ),
    Choice(
        "A JoinGroup that names a protocol twice, or whose metadata cannot be read, is answered; Kafka never answers.",
        "A client waits for an answer, and metadata are between members.",
        "JoinGroup * protocols*",
    ),
    Choice(
        "A join that is refused makes no group; in Kafka it leaves an empty one.",
        "A group is what somebody has joined, or committed for.",
        "JoinGroup * protocol*",
        "groups[[]].group_state",
        "Dead",
        "Empty",
    ),
    Choice(
        "A negative offset to commit is INVALID_REQUEST; Kafka stores it.",
        "In the answer to a fetch it means that there is none.",
        "OffsetCommit * topics.partitions.committed_offset=-*",
    ),
    Choice(
        "A negative leader epoch of a commit is stored as -1.",
        "No negative number is an epoch.",
        "OffsetCommit * topics.partitions.committed_leader_epoch=-*",
    ),
    *(
        Choice(
            "What a DescribeConfigs or a DescribeProducers names twice is answered once.",
            "A small request must not have a huge answer.",
            where,
        )
        for where in ("DescribeConfigs * resources=twice", "DescribeProducers * topics*=twice")
    ),
    Choice(
        "A resource that an AlterConfigs names twice is INVALID_REQUEST; Kafka never answers.",
        "A client waits for an answer.",
        "AlterConfigs * resources=twice",
    ),
    Choice(
        "A partition that an AlterPartitionReassignments names twice is INVALID_REQUEST; Kafka does the last.",
        "It is not clear which is meant.",
        "AlterPartitionReassignments * topics*=twice",
    ),
    Choice(
        "CreatePartitions of more than can be is INVALID_PARTITIONS; Kafka answers UNKNOWN_SERVER_ERROR.",
        "It is not the broker's fault.",
        "CreatePartitions * topics.count=*",
    ),
    Choice(
        "An unknown operation of an IncrementalAlterConfigs is INVALID_REQUEST; Kafka answers UNKNOWN_SERVER_ERROR.",
        "It is not the broker's fault.",
        path="responses[[]].error_code",
        ours="invalid_request",
        kafka="unknown_server_error",
    ),
    *(
        Choice(
            "cleanup.policy is delete or empty, compression.type is producer, some settings take their default alone.",
            "The rest is not built yet.",
            where,
            path,
            "invalid_config",
            theirs,
        )
        for where, path, theirs in (
            ("topic *", "topics[[]].error_code", "none"),
            ("topic *", "responses[[]].error_code", "none"),
            ("topic *", "responses[[]].error_code", "unknown_topic_or_partition"),
            ("settings *", "responses[[]].error_code", "none"),
        )
    ),
    *(
        Choice(
            "segment.bytes may be as small as 14, and an empty item that is appended to a list is left out.",
            "A topic of few records can give old ones up; an empty item says nothing.",
            where,
            "responses[[]].error_code",
            "none",
            "invalid_config",
        )
        for where in ("topic *", "settings *")
    ),
    *(
        Choice(
            "acks=all with more min.insync.replicas than replicas is NOT_ENOUGH_REPLICAS; Kafka lowers the minimum.",
            "What is acknowledged has the copies that were asked for.",
            "topic *",
            f"responses[[]].partition_responses[[]].{field}",
            ours=ours,
        )
        for field, ours in (("error_code", "not_enough_replicas"), ("base_offset", "-1"))
    ),
    *(
        Choice(
            "ListOffsets of the newest timestamp (-3) tells of records that are there; Kafka also of deleted ones.",
            "They cannot be read.",
            "topic *",
            path,
            kafka=theirs,
        )
        for path, theirs in (
            ("topics[[]].partitions[[]].offset", "0"),
            ("topics[[]].partitions[[]].leader_epoch", "0"),
            ("topics[[]].partitions[[]].timestamp", "1700000000000"),
        )
    ),
    *(
        Choice(
            "A topic without a name in Metadata or DescribeTopicPartitions fails alone; Kafka: UNKNOWN_SERVER_ERROR.",
            "It is not the broker's fault.",
            where,
        )
        for where in ("Metadata * topics.name=null", "DescribeTopicPartitions * topics.name=empty")
    ),
)
