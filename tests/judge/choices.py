"""Where raylog answers otherwise than Kafka on purpose. docs/compatibility.md tells it. Nothing else may differ."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import NamedTuple

from judge import asked
from judge.steps import Step
from judge.verdict import Difference

__all__ = ["CHOICES", "Choice"]


class Choice(NamedTuple):
    """``where``: names of sequences, ``path``: what differs in an answer, ``ours`` and ``kafka``: what it is, ``api``:
    the API that is answered; all with ``*``. ``when``: whether it is about this request. ``chance``: why it may explain
    nothing although it still holds; empty: each time all is asked, it explains something.
    """

    difference: str
    why: str
    where: str = "*"
    path: str = "*"
    ours: str = "*"
    kafka: str = "*"
    api: str = "*"
    when: Callable[[Step], bool] = lambda _: True
    chance: str = ""

    def explains(self, name: str, step: Step, found: Difference) -> bool:
        """Whether a difference in the answer to a step of this sequence is as chosen."""
        return (
            fnmatchcase(name, self.where)
            and fnmatchcase(found.path, self.path)
            and fnmatchcase(found.ours, self.ours)
            and fnmatchcase(found.kafka, self.kafka)
            and fnmatchcase(found.api, self.api)
            and self.when(step)
        )


CHOICES: tuple[Choice, ...] = (
    *(
        Choice(
            "A text that is no UTF-8 ends the connection; Kafka puts � in its place.",
            "A name that nobody can send again is of no use.",
            f"{where}not-utf8",
            path,
            ours,
            theirs,
        )
        for where, path, ours, theirs in (
            ("*", "", "closed", "an answer"),
            ("JoinGroup *", "groups[[]].group_state", "Dead", "CompletingRebalance"),
            ("JoinGroup *", "groups[[]].group_state", "Dead", "Empty"),
            ("JoinGroup *", "groups[[]].members#", "fewer", "more"),
            ("JoinGroup *", "groups[[]].protocol_type", "", "*"),
            ("SyncGroup *", "groups[[]].group_state", "CompletingRebalance", "Stable"),
            ("SyncGroup *", "groups[[]].protocol_data", "", "range"),
            ("SyncGroup *", "groups[[]].members[[]].member_metadata", "", "*"),
            ("LeaveGroup *reason=", "groups[[]].group_state", "Stable", "Empty"),
            ("LeaveGroup *reason=", "groups[[]].members#", "more", "fewer"),
            ("LeaveGroup *reason=", "groups[[]].protocol_data", "range", ""),
            ("OffsetCommit *", "groups[[]].group_state", "Dead", "Empty"),
            ("OffsetCommit *", "groups[[]].topics#", "fewer", "more"),
            ("Produce *transactional_id=", "topics[[]].partitions[[]].offset", "0", "3"),
        )
    ),
    *(
        Choice(
            "ApiVersions tells the APIs and features that there are.",
            "Kafka's are those of KRaft, too.",
            "ApiVersions*",
            path,
            ours,
            theirs,
        )
        for path, ours, theirs in (
            ("api_keys[[][0-9]*]", "–", "an answer"),
            ("supported_features#", "fewer", "more"),
            ("finalized_features#", "fewer", "more"),
        )
    ),
    *(
        Choice(
            "A partition that a Produce names twice is appended to twice; Kafka appends the last batch alone.",
            "What is sent is stored, or refused.",
            where,
            path,
            ours,
            theirs,
        )
        for where, path, ours, theirs in (
            ("Produce * topic_data*=twice", "responses[[]].partition_responses#", "more", "fewer"),
            ("Produce * topic_data*=twice", "topics[[]].partitions[[]].offset", "6", "3"),
        )
    ),
    *(
        Choice(
            "Bytes behind the batch of a Produce are INVALID_RECORD; Kafka drops them.",
            "What is sent is stored, or refused.",
            "Produce * topic_data.partition_data.records=bytes-behind",
            path,
            ours,
            theirs,
        )
        for path, ours, theirs in (
            ("responses[[]].partition_responses[[]].error_code", "invalid_record", "none"),
            ("topics[[]].partitions[[]].offset", "0", "3"),
        )
    ),
    Choice(
        "A Produce without records is INVALID_RECORD; Kafka never answers.",
        "A client waits for an answer.",
        "Produce * topic_data.partition_data.records=null",
        "",
        "an answer",
        "waits",
    ),
    Choice(
        "A compressed batch that cannot be decompressed is INVALID_RECORD; Kafka answers UNKNOWN_SERVER_ERROR.",
        "It is not the broker's fault.",
        "Produce * topic_data.partition_data.records=compressed-*-garbage",
        "responses[[]].partition_responses[[]].error_code",
        "invalid_record",
        "unknown_server_error",
    ),
    Choice(
        "The last timestamp of a producer is when the leader took its last batch; Kafka tells the batch's own.",
        "Producer ids expire by it, and a client's clock does not decide that.",
        "producer *",
        "*last_timestamp",
        "–",
        api="DescribeProducers",
    ),
    Choice(
        "A retry tells a time of append if the batch was given one; Kafka tells the producer's own time otherwise.",
        "Records whose time is the producer's are given none, whether they are sent once or twice.",
        "producer *",
        "responses[[]].partition_responses[[]].log_append_time",
        "None",
        "a time",
        "Produce",
    ),
    *(
        Choice(
            "Fetch tells the leader from version 12 on, to brokers with its address; Kafka from version 16, without.",
            "The field is there, and who asks the wrong broker finds the right one at once.",
            "Fetch * replica_*",
            path,
            ours,
            theirs,
        )
        for path, ours, theirs in (
            ("responses[[]].partitions[[]].current_leader.leader_id", "0", "-1"),
            ("responses[[]].partitions[[]].current_leader.leader_epoch", "0", "-1"),
            ("node_endpoints#", "more", "fewer"),
        )
    ),
    Choice(
        "A Fetch of a broker's former run is STALE_BROKER_EPOCH; Kafka answers NOT_LEADER_OR_FOLLOWER.",
        "It tells a broker that another one took its place.",
        "Fetch * replica_*=0",
        "responses[[]].partitions[[]].error_code",
        "stale_broker_epoch",
        "not_leader_or_follower",
    ),
    *(
        Choice(
            "A full Fetch that names a session is a full Fetch, whatever its number; Kafka fails for large ones.",
            "It ends a session that need not be there.",
            f"Fetch * session_id={number}",
            path,
            "none",
            "unknown_server_error",
        )
        for number in (-(2**31), 2**31 - 1)
        for path in ("error_code", "responses[[]].partitions[[]].error_code")
    ),
    *(
        Choice(
            "A transactional id is TRANSACTIONAL_ID_AUTHORIZATION_FAILED, and its coordinator, too.",
            "There are no transactions yet, and no client takes this error for one that passes.",
            where,
            path,
            "transactional_id_authorization_failed",
            "none",
        )
        for where, path in (
            ("InitProducerId * transactional_id=*", "error_code"),
            ("FindCoordinator * key_type=1", "error_code"),
            ("FindCoordinator * key_type=1", "coordinators[[]].error_code"),
        )
    ),
    *(
        Choice(
            "A group id of no byte, or of over 1,024 as a node's name, is INVALID_GROUP_ID; Kafka takes both.",
            "It is the name of a node.",
            where,
            path,
            ours,
            theirs,
        )
        for where, path, ours, theirs in (
            ("JoinGroup v[0-3] group_id=very-long", "error_code", "invalid_group_id", "none"),
            ("JoinGroup * group_id=very-long", "error_code", "invalid_group_id", "member_id_required"),
            ("[HS]* group_id=very-long", "error_code", "invalid_group_id", "unknown_member_id"),
            ("LeaveGroup v[0-2] group_id=very-long", "error_code", "invalid_group_id", "unknown_member_id"),
            ("LeaveGroup v[345] group_id=very-long", "error_code", "invalid_group_id", "none"),
            ("OffsetDelete * group_id=very-long", "error_code", "invalid_group_id", "group_id_not_found"),
            *(
                (f"{where}={which}", path, "invalid_group_id", theirs)
                for which in ("very-long", "empty")
                for where, path, theirs in (
                    ("OffsetCommit * group_id", "topics[[]].partitions[[]].error_code", "none"),
                    ("OffsetFetch v1 group_id", "topics[[]].partitions[[]].error_code", "none"),
                    ("OffsetFetch v[2-7] group_id", "error_code", "none"),
                    ("OffsetFetch * groups.group_id", "groups[[]].error_code", "none"),
                    ("DescribeGroups v[0-5] groups[[]0]", "groups[[]].error_code", "none"),
                    ("DescribeGroups v6 groups[[]0]", "groups[[]].error_code", "group_id_not_found"),
                    ("DeleteGroups * groups_names[[]0]", "results[[]].error_code", "group_id_not_found"),
                    ("FindCoordinator v[0-3] key", "error_code", "none"),
                    ("FindCoordinator * coordinator_keys[[]0]", "coordinators[[]].error_code", "none"),
                )
            ),
            ("DescribeGroups * groups*[[]0]=very-long", "groups[[]].group_state", "", "Dead"),
            ("DescribeGroups * groups*[[]0]=empty", "groups[[]].group_state", "", "Dead"),
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
    *(
        Choice(
            "A batch with a producer id and without an epoch is INVALID_RECORD; Kafka takes it.",
            "Nothing could be told of its retries.",
            "producer *",
            "responses[[]].partition_responses[[]].error_code",
            "invalid_record",
            theirs,
            when=asked.bare_producer_id,
        )
        for theirs in ("none", "invalid_producer_epoch", "transactional_id_authorization_failed")
    ),
    Choice(
        "A member that leaves before it joined with the id that it was given starts no rebalance; in Kafka it does.",
        "The others share nothing with it.",
        "group *",
        "groups[[]].group_state",
        "CompletingRebalance",
        "PreparingRebalance",
    ),
    Choice(
        "A group that a DescribeGroups or an OffsetFetch names twice is answered once.",
        "A small request must not have a huge answer.",
        "* groups=twice",
        "groups#",
        "fewer",
        "more",
    ),
    Choice(
        "Authorized operations of a group have neither DESCRIBE_CONFIGS nor ALTER_CONFIGS.",
        "Groups have no settings of their own here.",
        "DescribeGroups *",
        "groups[[]].authorized_operations",
        "328",
        "3400",
    ),
    *(
        Choice(
            "A JoinGroup that names a protocol twice, or whose metadata cannot be read, is answered; "
            "Kafka never answers.",
            "A client waits for an answer, and metadata are between members.",
            f"JoinGroup * protocols{where}",
            path,
            ours,
            theirs,
        )
        for where in ("=twice", ".metadata=*")
        for path, ours, theirs in (
            ("", "an answer", "waits"),
            ("groups[[]].group_state", "CompletingRebalance", "PreparingRebalance"),
            ("groups[[]].members[[]].member_id.$", "member id, judge-…", "member id, judge-…"),
        )
    ),
    Choice(
        "A join that is refused makes no group; in Kafka it leaves an empty one.",
        "A group is what somebody has joined, or committed for.",
        "JoinGroup * protocol*",
        "groups[[]].group_state",
        "Dead",
        "Empty",
        "DescribeGroups",
    ),
    Choice(
        "The member that joined first leads where the leader is gone; in Kafka a hash table's order decides.",
        "It is the one that was there longest.",
        "group *",
        "leader.$",
        "member id, *",
        "member id, *",
        "JoinGroup",
        chance="Members' ids are random, and so is their order in Kafka's table.",
    ),
    *(
        Choice(
            "Members that have joined do not wait for one that finds no place in a full group; in Kafka they do.",
            "They wait for nobody.",
            "JoinGroup * one too many*",
            path,
            ours,
            theirs,
        )
        for path, ours, theirs in (
            ("", "a list", "waits"),
            ("groups[[]].group_state", "CompletingRebalance", "PreparingRebalance"),
            ("groups[[]].members[[]].member_id.$", "member id, judge-…", "member id, judge-…"),
        )
    ),
    Choice(
        "A SyncGroup that waits while its member leaves is UNKNOWN_MEMBER_ID; Kafka never answers it.",
        "A client waits for an answer.",
        "rounds *",
        "",
        "a list",
        "waits",
        "SyncGroup",
    ),
    *(
        Choice(
            "A static member that starts again has its place in a full group; Kafka refuses it.",
            "It takes nobody's place, and a full group can be restarted, too.",
            "JoinGroup * full, a static member",
            path,
            ours,
            theirs,
        )
        for path, ours, theirs in (
            ("error_code", "none", "group_max_size_reached"),
            ("groups[[]].members[[]].member_id.$", "member id, i-…", "member id, i-…"),
        )
    ),
    *(
        Choice(
            "A negative offset to commit is INVALID_REQUEST; Kafka stores it.",
            "In the answer to a fetch it means that there is none.",
            "OffsetCommit * topics.partitions.committed_offset=-*",
            path,
            ours,
            theirs,
        )
        for path, ours, theirs in (
            ("topics[[]].partitions[[]].error_code", "invalid_request", "none"),
            ("groups[[]].topics#", "fewer", "more"),
        )
    ),
    Choice(
        "A negative leader epoch of a commit is stored as -1.",
        "No negative number is an epoch.",
        "OffsetCommit * topics.partitions.committed_leader_epoch=-*",
        "groups[[]].topics[[]].partitions[[]].committed_leader_epoch",
        "-1",
        "-*",
    ),
    *(
        Choice(
            "What a DescribeConfigs or a DescribeProducers names twice is answered once.",
            "A small request must not have a huge answer.",
            where,
            path,
            "fewer",
            "more",
        )
        for where, path in (
            ("DescribeConfigs * resources=twice", "results#"),
            ("DescribeProducers * topics=twice", "topics#"),
            ("DescribeProducers * topics.partition_indexes=twice", "topics[[]].partitions#"),
        )
    ),
    Choice(
        "A resource that an AlterConfigs names twice is INVALID_REQUEST; Kafka never answers.",
        "A client waits for an answer.",
        "AlterConfigs * resources=twice",
        "",
        "an answer",
        "waits",
    ),
    Choice(
        "A partition that an AlterPartitionReassignments names twice is INVALID_REQUEST; Kafka does the last.",
        "It is not clear which is meant.",
        "AlterPartitionReassignments * topics*=twice",
        "responses[[]].partitions[[]].error_code",
        "invalid_request",
        "none",
    ),
    Choice(
        "CreatePartitions of more than can be is INVALID_PARTITIONS; Kafka answers UNKNOWN_SERVER_ERROR.",
        "It is not the broker's fault.",
        "CreatePartitions * topics.count=*",
        "results[[]].error_code",
        "invalid_partitions",
        "unknown_server_error",
    ),
    Choice(
        "An unknown operation of an IncrementalAlterConfigs is INVALID_REQUEST; Kafka answers UNKNOWN_SERVER_ERROR.",
        "It is not the broker's fault.",
        path="responses[[]].error_code",
        ours="invalid_request",
        kafka="unknown_server_error",
        api="IncrementalAlterConfigs",
        when=asked.unknown_operation,
    ),
    Choice(
        "An unknown operation is told before a setting that is no list; in Kafka a hash map's order decides.",
        "It is the same error for the same request.",
        path="responses[[]].error_code",
        ours="invalid_request",
        kafka="invalid_config",
        api="IncrementalAlterConfigs",
        when=asked.unknown_operation,
    ),
    *(
        Choice(
            "cleanup.policy is delete or empty, compression.type is producer, some settings take their default alone.",
            "The rest is not built yet.",
            where,
            path,
            "invalid_config",
            theirs,
            when=asked.is_not_built,
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
            when=asked.small_segment_or_empty_item,
        )
        for where in ("topic *", "settings *")
    ),
    Choice(
        "acks=all with more min.insync.replicas than replicas is NOT_ENOUGH_REPLICAS; Kafka lowers the minimum.",
        "What is acknowledged has the copies that were asked for.",
        "topic *",
        "responses[[]].partition_responses[[]].error_code",
        "not_enough_replicas",
        "none",
    ),
    *(
        Choice(
            "ListOffsets of the newest timestamp (-3) tells of records that are there; Kafka also of deleted ones.",
            "They cannot be read.",
            "[tp]*",
            path,
            ours,
            theirs,
            "ListOffsets",
            asked.asks_for_newest,
        )
        for path, ours, theirs in (
            ("topics[[]].partitions[[]].offset", "*", "0"),
            ("topics[[]].partitions[[]].leader_epoch", "-1", "0"),
            ("topics[[]].partitions[[]].timestamp", "-1", "1700000000000"),
        )
    ),
    *(
        Choice(
            "A topic without a name in Metadata or DescribeTopicPartitions fails alone; Kafka: UNKNOWN_SERVER_ERROR.",
            "It is not the broker's fault.",
            where,
            path,
            ours,
            theirs,
        )
        for where, path, ours, theirs in (
            ("Metadata * topics.name=null", "error_code", "none", "unknown_server_error"),
            ("Metadata * topics.name=null", "topics[[]].error_code", "unknown_topic_id", "unknown_server_error"),
            ("Metadata * topics.name=null", "brokers#", "more", "fewer"),
            ("Metadata * topics.name=null", "controller_id", "0", "-1"),
            (
                "DescribeTopicPartitions * topics.name=empty",
                "topics[[]].error_code",
                "invalid_topic_exception",
                "unknown_server_error",
            ),
        )
    ),
)
