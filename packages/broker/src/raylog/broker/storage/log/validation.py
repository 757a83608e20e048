"""What a batch must be before the log takes it: by its headers, its checksum and the topic's settings."""

from __future__ import annotations

from raylog.broker.storage.state.log_config import LogConfig
from raylog.protocol.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RecordListTooLarge,
    TransactionalIdAuthorizationFailed,
    UnsupportedCompressionType,
)
from raylog.protocol.ids import TimestampMs, TopicPartition
from raylog.protocol.records import BatchHeader, TimestampType, validate_batch


def checked_headers(batches: memoryview, tp: TopicPartition, *, sparse: bool = False) -> tuple[BatchHeader, ...]:
    """The headers of whole, undamaged batches that fill ``batches``.

    ``sparse``: batches from a leader's disk, which compaction may have thinned. Raises InvalidRecord when there is
    none, CorruptMessage, UnsupportedCompressionType.
    """
    end = len(batches)
    if end == 0:
        raise InvalidRecord(f"{tp}: an append without a batch")
    try:
        header = validate_batch(batches, sparse=sparse)
        if header.size == end:
            return (header,)
        headers = [header]
        position = header.size
        while position < end:
            header = validate_batch(batches, position, sparse=sparse)
            headers.append(header)
            position += header.size
    except (CorruptMessage, InvalidRecord, UnsupportedCompressionType) as error:
        raise type(error)(f"{tp}: {error}") from None
    return tuple(headers)


def check_policy(
    headers: tuple[BatchHeader, ...], size: int, config: LogConfig, tp: TopicPartition, now_ms: TimestampMs
) -> None:
    """What the topic's settings ask of appended batches: MessageTooLarge, RecordListTooLarge, InvalidTimestamp."""
    if size > config.segment_bytes:
        raise RecordListTooLarge(f"{tp}: {size} bytes at once, a segment takes {config.segment_bytes}: send less")
    for header in headers:
        if header.batch_length + 12 > config.max_message_bytes:
            raise MessageTooLarge(
                f"{tp}: a batch of {header.size} bytes, max.message.bytes is {config.max_message_bytes}"
            )
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            raise InvalidTimestamp(f"{tp}: a producer may not say LogAppendTime: the broker does, where the topic asks")
        if config.log_append_time:
            continue
        if header.max_timestamp > now_ms + config.timestamp_after_max_ms:
            raise InvalidTimestamp(
                f"{tp}: timestamp {header.max_timestamp} is more than {config.timestamp_after_max_ms} ms ahead of the "
                f"broker's clock ({now_ms}); see message.timestamp.after.max.ms"
            )


def check_client(headers: tuple[BatchHeader, ...], tp: TopicPartition) -> None:
    """What clients may not send, by Kafka's rules.

    Raises InvalidRecord for several batches at once, control batches and a base offset, and
    TransactionalIdAuthorizationFailed for a batch of a transaction.
    """
    header = headers[0]
    if len(headers) > 1:
        raise InvalidRecord(f"{tp}: {len(headers)} batches at once; a request has exactly one per partition")
    if header.is_control:
        raise InvalidRecord(f"{tp}: clients may not write control batches")
    if header.is_transactional:
        raise TransactionalIdAuthorizationFailed(
            f"{tp}: a batch of a transaction, of producer {header.producer_id}: raylog offers no transactions yet"
        )
    if header.base_offset != 0:
        raise InvalidRecord(
            f"{tp}: a batch with base offset {header.base_offset}; a producer sends 0, the leader assigns"
        )
