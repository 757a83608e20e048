"""◆ Which offsets an export still has to write, from what the log has, what was exported, and what was asked for.

Progress is the exported files themselves: each covers the offsets from its name to the next offset of its footer, and
together they form one chain per partition that begins at offset 0. What lies before the first record that was wanted
counts as covered by the first file. So there is one place only where a partition can go on, whoever asks.
"""

from __future__ import annotations

from collections.abc import Mapping

from raylog.client.ranges.offset_ranges import LogBounds, OffsetRange
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import Offset, TopicPartition


class ExportRefused(RaylogError):
    """The export would leave out, repeat or mix up records; the message says which, and what to do."""


def plan_export(
    bounds: Mapping[TopicPartition, LogBounds],
    exported: Mapping[TopicPartition, Offset],
    since: Mapping[TopicPartition, Offset],
    until: Mapping[TopicPartition, Offset],
) -> tuple[list[OffsetRange], list[str]]:
    """The ranges to write, one for each partition of ``bounds`` that has any; and a phrase for each loss.

    ``exported`` has the next offset of partitions that have files, ``since`` and ``until`` the offsets where the wanted
    records begin and end, of all partitions or of none. A partition that has files goes on where they end; one without
    begins at ``since``. What the log lost before it was exported is left out of the ranges and told of.

    Raises ExportRefused when ``since`` would leave out records between it and what was exported, and when the log ends
    before what was exported does.
    """
    ranges, losses = [], []
    for tp in sorted(bounds):
        log, done = bounds[tp], exported.get(tp)
        start = max(log.first, since.get(tp, log.first))
        end = min(log.next, until.get(tp, log.next))
        if done is not None:
            if done > log.next:
                raise ExportRefused(
                    f"{tp}: exported up to offset {done}, and the log ends at {log.next}: it was cut off or is of "
                    "another cluster; export into another directory"
                )
            if since.get(tp, done) > done:
                raise ExportRefused(
                    f"{tp}: exported up to offset {done}, and since begins at {since[tp]}, which would leave out what "
                    "lies between: leave since out to go on there, or export into another directory"
                )
            if done < log.first:
                losses.append(f"{tp}: offsets {done} to {log.first - 1} were deleted before they were exported")
            start = max(done, log.first)
        if start < end:
            ranges.append(OffsetRange(tp, start, end))
    return ranges, losses
