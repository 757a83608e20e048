"""Every error that crosses a package's border, with the Kafka code it becomes on the wire.

Domain code raises these exceptions and knows no codes; the edge (the broker's handlers, the client's response readers)
translates with :func:`code_of` and :func:`exception_for`. One row per error in :data:`ROWS` is the whole mapping.
A message says what happened, where (topic-partition, offset, broker) and what to do.
"""

from __future__ import annotations

from typing import NamedTuple

from kio.schema.errors import ErrorCode

from raylog.protocol.base_error import RaylogError as RaylogError

__all__ = ["ROWS", "ErrorCode", "ErrorRow", "RaylogError", "code_of", "exception_for", "is_retriable"]


class OffsetOutOfRange(RaylogError):
    """The offset lies before the log's start or after its end."""


class CorruptMessage(RaylogError):
    """Bytes are damaged: a checksum, a length or a compressed stream does not fit."""


class UnknownTopicOrPartition(RaylogError):
    """There is no such topic or partition, or none that this broker knows of."""


class UnknownTopicId(RaylogError):
    """No topic has this id: it was deleted, or this broker has not heard of it yet."""


class InconsistentTopicId(RaylogError):
    """The topic's id is another than the request says: the topic was created anew."""


class LeaderNotAvailable(RaylogError):
    """The partition has no leader now."""


class NotLeaderOrFollower(RaylogError):
    """Another broker leads the partition, or this one's lease has lapsed: ask for metadata anew."""


class FencedLeaderEpoch(RaylogError):
    """The request names a leader epoch that is over."""


class UnknownLeaderEpoch(RaylogError):
    """The request names a leader epoch that this broker has not heard of yet."""


class OffsetNotAvailable(RaylogError):
    """A new leader does not yet know how far the log is committed."""


class ReplicaNotAvailable(RaylogError):
    """The broker keeps no replica of the partition, or not yet: ask its leader."""


class RequestTimedOut(RaylogError):
    """The time that the request allows is over, and what it asked for may or may not have happened."""


class BrokerNotAvailable(RaylogError):
    """The broker is not up, or not yet registered."""


class MessageTooLarge(RaylogError):
    """A batch is larger than max.message.bytes."""


class RecordListTooLarge(RaylogError):
    """The batches of one request are together larger than a segment."""


class InvalidRecord(RaylogError):
    """A batch or record contradicts itself or breaks a rule, though its bytes are sound."""


class InvalidTimestamp(RaylogError):
    """A record's timestamp is too far from the broker's clock."""


class UnsupportedCompressionType(RaylogError):
    """The compression is unknown, or the request's version must not carry it."""


class UnsupportedForMessageFormat(RaylogError):
    """The log's record format cannot serve what was asked."""


class InvalidRequiredAcks(RaylogError):
    """acks is none of 0, 1 and -1 (all)."""


class NotEnoughReplicas(RaylogError):
    """Fewer replicas are in sync than min.insync.replicas; nothing was appended."""


class NotEnoughReplicasAfterAppend(RaylogError):
    """As NotEnoughReplicas, noticed after the leader appended."""


class StaleControllerEpoch(RaylogError):
    """The controller that sent this was deposed."""


class StaleBrokerEpoch(RaylogError):
    """The message is meant for, or comes from, an earlier life of the broker."""


class NotController(RaylogError):
    """This broker is not the controller: ask the one that metadata names."""


class CoordinatorNotAvailable(RaylogError):
    """The group's or transaction's coordinator, or the next producer id, cannot be had now."""


class InvalidTopic(RaylogError):
    """The topic's name is illegal, or the topic is internal."""


class TopicAlreadyExists(RaylogError):
    """A topic has this name already."""


class InvalidPartitions(RaylogError):
    """The number of partitions is below 1 or too high."""


class InvalidReplicationFactor(RaylogError):
    """The replication factor is below 1 or above what the brokers can hold."""


class InvalidReplicaAssignment(RaylogError):
    """A manual assignment names unknown or repeated brokers, or leaves out partitions."""


class InvalidConfig(RaylogError):
    """A setting is unknown, or its value is unfit."""


class InvalidRequest(RaylogError):
    """The request is malformed, or contradicts itself."""


class UnsupportedVersion(RaylogError):
    """The API, or this version of it, is not served here."""


class PolicyViolation(RaylogError):
    """A rule of this cluster forbids it."""


class TopicDeletionDisabled(RaylogError):
    """Topics must not be deleted in this cluster."""


class OutOfOrderSequence(RaylogError):
    """A producer's sequence has a gap: a batch before this one is missing."""


class DuplicateSequence(RaylogError):
    """A batch was sent again whose offset is no longer remembered."""


class InvalidProducerEpoch(RaylogError):
    """A newer producer has taken over this producer id."""


class UnknownProducerId(RaylogError):
    """The log remembers nothing of this producer id."""


class TransactionalIdAuthorizationFailed(RaylogError):
    """Nobody, or not this principal, may use the transactional id."""


class StorageError(RaylogError):
    """The disk failed, or is full: the log directory goes offline."""


class TopicAuthorizationFailed(RaylogError):
    """The principal may not do this to the topic."""


class ClusterAuthorizationFailed(RaylogError):
    """The principal may not do this to the cluster."""


class GroupAuthorizationFailed(RaylogError):
    """The principal may not do this to the group."""


class NetworkException(RaylogError):
    """The connection broke before the response came."""


class ResourceNotFound(RaylogError):
    """The thing that the request names does not exist."""


class FetchSessionIdNotFound(RaylogError):
    """The fetch session is over or was never there: begin a new one."""


class InvalidFetchSessionEpoch(RaylogError):
    """The fetch session is at another request than this one."""


class FetchSessionTopicIdError(RaylogError):
    """The fetch session names topics by id and the request by name, or the other way round: begin a new session."""


class ElectionNotNeeded(RaylogError):
    """The partition is led by whom the election would make its leader."""


class PreferredLeaderNotAvailable(RaylogError):
    """The preferred replica is not alive and in sync."""


class EligibleLeadersNotAvailable(RaylogError):
    """No replica is alive that could lead."""


class NoReassignmentInProgress(RaylogError):
    """The partition is not being reassigned, so there is nothing to cancel."""


class CoordinatorLoadInProgress(RaylogError):
    """The coordinator is reading the group and serves it in a moment."""


class NotCoordinator(RaylogError):
    """Another broker coordinates the group."""


class IllegalGeneration(RaylogError):
    """The member's generation is not the group's: it was rebalanced meanwhile."""


class InconsistentGroupProtocol(RaylogError):
    """The member shares no way of assigning with the group, or the group is of the other kind."""


class InvalidGroupId(RaylogError):
    """The group id is empty or otherwise unusable."""


class UnknownMemberId(RaylogError):
    """The group has no such member, or has it no more."""


class InvalidSessionTimeout(RaylogError):
    """The session timeout is outside what brokers allow."""


class RebalanceInProgress(RaylogError):
    """The group is being rebalanced: join again."""


class OffsetMetadataTooLarge(RaylogError):
    """The text beside a committed offset is too long."""


class GroupIdNotFound(RaylogError):
    """There is no such group."""


class NonEmptyGroup(RaylogError):
    """The group has members."""


class MemberIdRequired(RaylogError):
    """Join again with the member id that came with this answer (KIP-394)."""


class GroupMaxSizeReached(RaylogError):
    """The group has as many members as brokers allow."""


class FencedInstanceId(RaylogError):
    """A newer member has this group.instance.id."""


class GroupSubscribedToTopic(RaylogError):
    """A member of the group reads the topic, so its offsets are in use."""


class ErrorRow(NamedTuple):
    """A domain error and its code on the wire; Kafka's own table says whether a client may retry it."""

    exception: type[RaylogError]
    code: ErrorCode


ROWS: tuple[ErrorRow, ...] = (
    ErrorRow(RaylogError, ErrorCode.unknown_server_error),
    ErrorRow(OffsetOutOfRange, ErrorCode.offset_out_of_range),
    ErrorRow(CorruptMessage, ErrorCode.corrupt_message),
    ErrorRow(UnknownTopicOrPartition, ErrorCode.unknown_topic_or_partition),
    ErrorRow(UnknownTopicId, ErrorCode.unknown_topic_id),
    ErrorRow(InconsistentTopicId, ErrorCode.inconsistent_topic_id),
    ErrorRow(LeaderNotAvailable, ErrorCode.leader_not_available),
    ErrorRow(NotLeaderOrFollower, ErrorCode.not_leader_or_follower),
    ErrorRow(ReplicaNotAvailable, ErrorCode.replica_not_available),
    ErrorRow(FencedLeaderEpoch, ErrorCode.fenced_leader_epoch),
    ErrorRow(UnknownLeaderEpoch, ErrorCode.unknown_leader_epoch),
    ErrorRow(OffsetNotAvailable, ErrorCode.offset_not_available),
    ErrorRow(RequestTimedOut, ErrorCode.request_timed_out),
    ErrorRow(BrokerNotAvailable, ErrorCode.broker_not_available),
    ErrorRow(MessageTooLarge, ErrorCode.message_too_large),
    ErrorRow(RecordListTooLarge, ErrorCode.record_list_too_large),
    ErrorRow(InvalidRecord, ErrorCode.invalid_record),
    ErrorRow(InvalidTimestamp, ErrorCode.invalid_timestamp),
    ErrorRow(UnsupportedCompressionType, ErrorCode.unsupported_compression_type),
    ErrorRow(UnsupportedForMessageFormat, ErrorCode.unsupported_for_message_format),
    ErrorRow(InvalidRequiredAcks, ErrorCode.invalid_required_acks),
    ErrorRow(NotEnoughReplicas, ErrorCode.not_enough_replicas),
    ErrorRow(NotEnoughReplicasAfterAppend, ErrorCode.not_enough_replicas_after_append),
    ErrorRow(StaleControllerEpoch, ErrorCode.stale_controller_epoch),
    ErrorRow(StaleBrokerEpoch, ErrorCode.stale_broker_epoch),
    ErrorRow(NotController, ErrorCode.not_controller),
    ErrorRow(CoordinatorNotAvailable, ErrorCode.coordinator_not_available),
    ErrorRow(InvalidTopic, ErrorCode.invalid_topic_exception),
    ErrorRow(TopicAlreadyExists, ErrorCode.topic_already_exists),
    ErrorRow(InvalidPartitions, ErrorCode.invalid_partitions),
    ErrorRow(InvalidReplicationFactor, ErrorCode.invalid_replication_factor),
    ErrorRow(InvalidReplicaAssignment, ErrorCode.invalid_replica_assignment),
    ErrorRow(InvalidConfig, ErrorCode.invalid_config),
    ErrorRow(InvalidRequest, ErrorCode.invalid_request),
    ErrorRow(UnsupportedVersion, ErrorCode.unsupported_version),
    ErrorRow(PolicyViolation, ErrorCode.policy_violation),
    ErrorRow(TopicDeletionDisabled, ErrorCode.topic_deletion_disabled),
    ErrorRow(OutOfOrderSequence, ErrorCode.out_of_order_sequence_number),
    ErrorRow(DuplicateSequence, ErrorCode.duplicate_sequence_number),
    ErrorRow(InvalidProducerEpoch, ErrorCode.invalid_producer_epoch),
    ErrorRow(UnknownProducerId, ErrorCode.unknown_producer_id),
    ErrorRow(TransactionalIdAuthorizationFailed, ErrorCode.transactional_id_authorization_failed),
    ErrorRow(StorageError, ErrorCode.kafka_storage_error),
    ErrorRow(TopicAuthorizationFailed, ErrorCode.topic_authorization_failed),
    ErrorRow(ClusterAuthorizationFailed, ErrorCode.cluster_authorization_failed),
    ErrorRow(GroupAuthorizationFailed, ErrorCode.group_authorization_failed),
    ErrorRow(NetworkException, ErrorCode.network_exception),
    ErrorRow(ResourceNotFound, ErrorCode.resource_not_found),
    ErrorRow(FetchSessionIdNotFound, ErrorCode.fetch_session_id_not_found),
    ErrorRow(InvalidFetchSessionEpoch, ErrorCode.invalid_fetch_session_epoch),
    ErrorRow(FetchSessionTopicIdError, ErrorCode.fetch_session_topic_id_error),
    ErrorRow(ElectionNotNeeded, ErrorCode.election_not_needed),
    ErrorRow(PreferredLeaderNotAvailable, ErrorCode.preferred_leader_not_available),
    ErrorRow(EligibleLeadersNotAvailable, ErrorCode.eligible_leaders_not_available),
    ErrorRow(NoReassignmentInProgress, ErrorCode.no_reassignment_in_progress),
    ErrorRow(CoordinatorLoadInProgress, ErrorCode.coordinator_load_in_progress),
    ErrorRow(NotCoordinator, ErrorCode.not_coordinator),
    ErrorRow(IllegalGeneration, ErrorCode.illegal_generation),
    ErrorRow(InconsistentGroupProtocol, ErrorCode.inconsistent_group_protocol),
    ErrorRow(InvalidGroupId, ErrorCode.invalid_group_id),
    ErrorRow(UnknownMemberId, ErrorCode.unknown_member_id),
    ErrorRow(InvalidSessionTimeout, ErrorCode.invalid_session_timeout),
    ErrorRow(RebalanceInProgress, ErrorCode.rebalance_in_progress),
    ErrorRow(OffsetMetadataTooLarge, ErrorCode.offset_metadata_too_large),
    ErrorRow(GroupIdNotFound, ErrorCode.group_id_not_found),
    ErrorRow(NonEmptyGroup, ErrorCode.non_empty_group),
    ErrorRow(MemberIdRequired, ErrorCode.member_id_required),
    ErrorRow(GroupMaxSizeReached, ErrorCode.group_max_size_reached),
    ErrorRow(FencedInstanceId, ErrorCode.fenced_instance_id),
    ErrorRow(GroupSubscribedToTopic, ErrorCode.group_subscribed_to_topic),
)

_CODE_BY_EXCEPTION = {row.exception: row.code for row in ROWS}
_EXCEPTION_BY_CODE = {row.code: row.exception for row in ROWS}


def code_of(error: Exception) -> ErrorCode:
    """The code that tells a client of ``error``; UNKNOWN_SERVER_ERROR for what no row covers."""
    known = (_CODE_BY_EXCEPTION[kind] for kind in type(error).__mro__ if kind in _CODE_BY_EXCEPTION)
    return next(known, ErrorCode.unknown_server_error)


def exception_for(code: int, message: str) -> RaylogError:
    """The exception that a response's ``code`` stands for, with ``message`` naming where it happened."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return RaylogError(f"{message}: unknown error code {code}")
    return _EXCEPTION_BY_CODE.get(known, RaylogError)(f"{message}: {known.name.upper()} ({code})")


def is_retriable(error: Exception) -> bool:
    """True when trying the same request again, perhaps after a metadata refresh, can succeed."""
    return code_of(error).retriable
