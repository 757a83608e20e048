"""Cuts offset ranges into Spark partitions. Sans-io."""

from __future__ import annotations

from collections.abc import Sequence

from raylog.spark.offsets import OffsetRange


def split(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """``ranges`` in the same order, cut until there are about ``min_partitions`` of even size and none is
    longer than ``max_records`` offsets. Each becomes one Spark partition."""
    raise NotImplementedError
