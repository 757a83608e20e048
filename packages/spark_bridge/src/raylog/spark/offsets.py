"""What Spark's users write as ``startingOffsets`` and ``endingOffsets``, and the offsets it stands for.

The text is ``earliest``, ``latest`` or JSON like ``{"flights": {"0": 23, "1": -2}}``, in which -2 is earliest
and -1 latest, as in Spark's own Kafka source. Sans-io: the bounds of the log are handed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from raylog.protocol.ids import Offset, TopicPartition

EARLIEST = Offset(-2)
"""Stands for the first offset that the log still has; also ListOffsets' timestamp for it."""

LATEST = Offset(-1)
"""Stands for the offset behind the last record that consumers may see; also ListOffsets' timestamp for it."""

OffsetSpec = Offset | Mapping[TopicPartition, Offset]
"""EARLIEST or LATEST for every partition, or an offset, EARLIEST or LATEST for each."""


class LogBounds(NamedTuple):
    """What a partition's log holds for consumers: from ``first`` to ``next``, without ``next``."""

    first: Offset
    next: Offset


class OffsetRange(NamedTuple):
    """Offsets ``start`` to ``end``, without ``end``, of one partition."""

    tp: TopicPartition
    start: Offset
    end: Offset


def parse_offsets(option: str, text: str) -> OffsetSpec:
    """The value of ``option`` (its name is for error messages).

    Raises ValueError in one sentence for what is neither a known word nor JSON of the right shape.
    """
    raise NotImplementedError


def resolve(
    starting: OffsetSpec,
    ending: OffsetSpec,
    bounds: Mapping[TopicPartition, LogBounds],
    *,
    fail_on_data_loss: bool,
) -> tuple[list[OffsetRange], list[str]]:
    """The ranges to read, empty ones left out, and a sentence for each offset that the log no longer has."""
    raise NotImplementedError
