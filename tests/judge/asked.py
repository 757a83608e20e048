"""What a request asks: by this a choice tells the requests that it is about from others of the same API."""

from __future__ import annotations

from collections.abc import Iterator

from judge.steps import Batch, Step, Tree

__all__ = [
    "asks_for_newest",
    "bare_producer_id",
    "is_not_built",
    "makes_what_others_name",
    "small_segment_or_empty_item",
    "unknown_operation",
]

NEWEST_TIMESTAMP = -3
OFFSET_COMMIT, JOIN_GROUP, CREATE_TOPICS = 8, 11, 19
OPERATIONS = range(4)
APPEND = 2
SMALLEST, KAFKAS_SMALLEST = 14, 1 << 20


def asks_for_newest(step: Step) -> bool:
    """Whether a ListOffsets asks for the newest timestamp (KIP-734)."""
    return any(
        part.get("timestamp") == NEWEST_TIMESTAMP for topic in _items(step, "topics") for part in topic["partitions"]
    )


def bare_producer_id(step: Step) -> bool:
    """Whether a Produce has a batch of a producer without an epoch."""
    return any(
        isinstance(batch := part["records"], Batch) and bool(batch.producer) and batch.epoch_plus == -1
        for topic in _items(step, "topic_data")
        for part in topic["partition_data"]
    )


def is_not_built(step: Step) -> bool:
    """Whether settings of topics ask for compaction, or for batches that the broker compresses."""
    return any(
        "compact" in (value or "") if name == "cleanup.policy" else name == "compression.type" and value != "producer"
        for name, value, _ in _settings(step)
    )


def makes_what_others_name(step: Step) -> bool:
    """Whether it makes a topic or a group whose name is not the sequence's own: others may name it, too."""
    names = [each["name"] for each in _items(step, "topics")] if step.api == CREATE_TOPICS else []
    if step.api in (OFFSET_COMMIT, JOIN_GROUP):
        names = [step.tree["group_id"]]
    return not all("#" in name for name in names)


def small_segment_or_empty_item(step: Step) -> bool:
    """Whether settings of topics have a segment.bytes that Kafka refuses as too small, or append an empty item."""
    return any(
        (name == "segment.bytes" and (value or "").isdecimal() and SMALLEST <= int(value or "0") < KAFKAS_SMALLEST)
        or (operation == APPEND and not value)
        for name, value, operation in _settings(step)
    )


def unknown_operation(step: Step) -> bool:
    """Whether an IncrementalAlterConfigs has an operation that does not exist."""
    return any(operation not in OPERATIONS for _, _, operation in _settings(step))


def _settings(step: Step) -> Iterator[tuple[str, str | None, int]]:
    """Name, value and operation (0, set, where the request has none) of each setting of a request's topics."""
    for item in (*_items(step, "topics"), *_items(step, "resources")):
        for entry in item.get("configs") or ():
            yield entry["name"], entry["value"], entry.get("config_operation", 0)


def _items(step: Step, field: str) -> list[Tree]:
    return [each for each in step.tree.get(field) or () if isinstance(each, dict)]
