"""◆ What a sink writes down so that each batch gets into its topics once.

Before anything is sent, the batch's rows lie in files, and a plan of the batch tells who sends each file: a producer id
and an epoch. A row's partition and its number there, the sequence, follow from the file alone. So whoever sends the
batch, and however often, gives a record the same name (producer, epoch, partition, sequence), and brokers take a name
once (KIP-98). The plan also has the offsets where the batch begins: what lies behind them under these names is there.

Every batch takes the next epoch of the producers of the batch before: brokers have few producers to remember, and a
task that still sends an older batch is fenced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from raylog.client.producer_state import MAX_EPOCH, Identity
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

FORMAT = 1
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
    rows: str
    """The directory with the batch's rows."""
    files: Mapping[str, Identity]
    """Who sends each of its files."""
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


@dataclass(frozen=True, slots=True)
class Done:
    """The newest batch that is written, and with it all before."""

    batch_id: int
    topic: str | None
    """Of the sink; None when each row names its own."""
    producers: Sequence[Identity]
    """Who wrote; the next batch takes their next epochs."""

    def to_json(self) -> str:
        """As it is written down."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse. Raises ValueError for what is no such mark of this format."""
        fields = _fields(text)
        try:
            fields["producers"] = tuple(Identity(*identity) for identity in fields["producers"])
            return cls(**fields)
        except (KeyError, TypeError) as error:
            raise ValueError(f"no mark of a batch that is done: {error!r}") from error

    def successors(self) -> list[Identity]:
        """The producers of the next batch; those whose epochs are used up have none."""
        return [
            Identity(identity.producer_id, identity.epoch + 1)
            for identity in self.producers
            if identity.epoch < MAX_EPOCH
        ]


def _fields(text: str) -> dict[str, Any]:
    """Raises ValueError."""
    fields = json.loads(text)
    if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
        raise ValueError(f"this is not of format {FORMAT}: was it written by another version of raylog?")
    return fields
