"""Every error that crosses a package's border, with the Kafka code it becomes on the wire.

Domain code raises these exceptions and knows no codes; the edge (the broker's handlers, the client's response
readers) translates with :func:`code_of` and :func:`exception_for`. One row per error in :data:`ROWS` is the whole
mapping. A message says what happened, where (topic-partition, offset, broker) and what to do.
"""

from __future__ import annotations

from typing import NamedTuple

from kio.schema.errors import ErrorCode

__all__ = ["ROWS", "ErrorCode", "ErrorRow", "RaylogError", "code_of", "exception_for", "is_retriable"]


class RaylogError(Exception):
    """Base of all errors that raylog raises on purpose. Alone it means a defect: UNKNOWN_SERVER_ERROR on the wire."""


class OffsetOutOfRange(RaylogError): ...


class CorruptMessage(RaylogError): ...


class UnknownTopicOrPartition(RaylogError): ...


class UnknownTopicId(RaylogError): ...


class InconsistentTopicId(RaylogError): ...


class LeaderNotAvailable(RaylogError): ...


class NotLeaderOrFollower(RaylogError): ...


class FencedLeaderEpoch(RaylogError): ...


class UnknownLeaderEpoch(RaylogError): ...


class OffsetNotAvailable(RaylogError): ...


class RequestTimedOut(RaylogError): ...


class BrokerNotAvailable(RaylogError): ...


class MessageTooLarge(RaylogError): ...


class RecordListTooLarge(RaylogError): ...


class InvalidRecord(RaylogError): ...


class InvalidTimestamp(RaylogError): ...


class UnsupportedCompressionType(RaylogError): ...


class UnsupportedForMessageFormat(RaylogError): ...


class InvalidRequiredAcks(RaylogError): ...


class NotEnoughReplicas(RaylogError): ...


class NotEnoughReplicasAfterAppend(RaylogError): ...


class StaleControllerEpoch(RaylogError): ...


class StaleBrokerEpoch(RaylogError): ...


class NotController(RaylogError): ...


class CoordinatorNotAvailable(RaylogError): ...


class InvalidTopic(RaylogError): ...


class TopicAlreadyExists(RaylogError): ...


class InvalidPartitions(RaylogError): ...


class InvalidReplicationFactor(RaylogError): ...


class InvalidReplicaAssignment(RaylogError): ...


class InvalidConfig(RaylogError): ...


class InvalidRequest(RaylogError): ...


class UnsupportedVersion(RaylogError): ...


class PolicyViolation(RaylogError): ...


class TopicDeletionDisabled(RaylogError): ...


class OutOfOrderSequence(RaylogError): ...


class DuplicateSequence(RaylogError): ...


class InvalidProducerEpoch(RaylogError): ...


class UnknownProducerId(RaylogError): ...


class TransactionalIdNotFound(RaylogError): ...


class StorageError(RaylogError):
    """The disk failed, or is full: the log directory goes offline."""


class TopicAuthorizationFailed(RaylogError): ...


class ClusterAuthorizationFailed(RaylogError): ...


class NetworkException(RaylogError): ...


class ResourceNotFound(RaylogError): ...


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
    ErrorRow(TransactionalIdNotFound, ErrorCode.transactional_id_not_found),
    ErrorRow(StorageError, ErrorCode.kafka_storage_error),
    ErrorRow(TopicAuthorizationFailed, ErrorCode.topic_authorization_failed),
    ErrorRow(ClusterAuthorizationFailed, ErrorCode.cluster_authorization_failed),
    ErrorRow(NetworkException, ErrorCode.network_exception),
    ErrorRow(ResourceNotFound, ErrorCode.resource_not_found),
)

_CODE_BY_EXCEPTION = {row.exception: row.code for row in ROWS}
_EXCEPTION_BY_CODE = {row.code: row.exception for row in ROWS}


def code_of(error: Exception) -> ErrorCode:
    """The code that tells a client of ``error``; UNKNOWN_SERVER_ERROR for what no row covers."""
    for kind in type(error).__mro__:
        if kind in _CODE_BY_EXCEPTION:
            return _CODE_BY_EXCEPTION[kind]
    return ErrorCode.unknown_server_error


def exception_for(code: int, message: str) -> RaylogError:
    """The exception that a response's ``code`` stands for, with ``message`` naming where it happened."""
    try:
        known = ErrorCode(code)  # type: ignore[call-arg]
    except ValueError:
        return RaylogError(f"{message}: unknown error code {code}")
    exception = _EXCEPTION_BY_CODE.get(known, RaylogError)
    return exception(f"{message}: {known.name.upper()} ({code})")


def is_retriable(error: Exception) -> bool:
    """True when trying the same request again, perhaps after a metadata refresh, can succeed."""
    return code_of(error).retriable
