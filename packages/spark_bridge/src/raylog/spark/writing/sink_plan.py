"""◆ What a sink writes down so that each batch gets into its topics once.

Before anything is sent, the batch's rows lie in files, and a plan of the batch tells who sends each file: a producer id
and an epoch. A row's partition and its number there, the sequence, follow from the file alone. So whoever sends the
batch, and however often, gives a record the same name (producer, epoch, partition, sequence), and brokers take a name
once (KIP-98). The plan also has the offsets where the batch begins: what lies behind them under these names is there.

A producer and epoch are spent once a plan names them, also when that plan is deleted: under another plan the same names
would be other rows, which brokers take for those that they have. So no file tells who sends next.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self
from uuid import UUID

from raylog.client.produce.producer_state import Identity
from raylog.protocol.ids import PartitionIndex, TopicId, TopicName, TopicPartition

FORMAT = 3
"""Of the files; another one is refused."""


@dataclass(frozen=True, slots=True)
class Target:
    """A topic as it was before the batch."""

    topic_id: str
    ends: Sequence[int]
    """The end offset of each partition."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How one batch is written, whoever does it."""

    batch_id: int
    topic: str | None
    """Of the sink; None when each row names its own."""
    rows: str
    """The directory with the batch's rows."""
    files: Mapping[str, Identity]
    """Who sends each of its files."""
    row_count: int
    """How many rows there are, as they were counted while they were written."""
    targets: Mapping[str, Target]
    """By topic."""
    batch_size: int
    """Of the producers, in bytes: the same cuts make the same batches, which brokers know again."""

    def starts(self) -> dict[TopicPartition, int]:
        """Where the batch begins in each partition."""
        return {
            TopicPartition(TopicName(topic), PartitionIndex(partition)): end
            for topic, target in self.targets.items()
            for partition, end in enumerate(target.ends)
        }

    def topic_ids(self) -> dict[TopicName, TopicId]:
        """The topics that it is written to: others of their names lack what was written before."""
        return {TopicName(topic): TopicId(UUID(target.topic_id)) for topic, target in self.targets.items()}

    def to_json(self) -> str:
        """As it is written down."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse. Raises ValueError for what is no plan of this format."""
        fields = _fields(text)
        try:
            fields["files"] = {name: Identity(*identity) for name, identity in fields["files"].items()}
            fields["targets"] = {topic: Target(**target) for topic, target in fields["targets"].items()}
            return cls(**fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no plan of a batch: {error!r}") from error


def next_to_json(topic: str | None) -> str:
    """What the mark of the next batch holds."""
    return json.dumps({"format": FORMAT, "topic": topic})


def is_of_sink(text: str, topic: str | None) -> bool:
    """Whether a plan or mark is of a sink to ``topic``; a mark that somebody made by hand may be empty. Raises
    ValueError for what is neither."""
    return not text.strip() or _fields(text).get("topic", topic) == topic


def _fields(text: str) -> dict[str, Any]:
    """Raises ValueError."""
    fields = json.loads(text)
    if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
        raise ValueError(f"this is not of format {FORMAT}: was it written by another version of raylog?")
    return fields
