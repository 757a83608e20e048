"""Which leader epoch began at which offset (KIP-101): what followers truncate by and consumers check (KIP-320).

Pure: the log writes :meth:`LeaderEpochs.rows` to ``leader-epoch-checkpoint`` whenever a method here says that
something changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from raylog.protocol.ids import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset


class LeaderEpochs:
    """Epochs with their start offsets, both strictly growing. The caller holds the log's lock."""

    def __init__(self, rows: Iterable[tuple[LeaderEpoch, Offset]] = ()) -> None:
        self._epochs: list[LeaderEpoch] = []
        self._starts: list[Offset] = []
        for epoch, start in rows:
            self.assign(epoch, start)

    def rows(self) -> list[tuple[LeaderEpoch, Offset]]:
        """All epochs with their start offsets, in order."""
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> LeaderEpoch:
        """The newest epoch; -1 when there is none."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    @property
    def latest_start(self) -> Offset:
        """Where the newest epoch begins; -1 when there is none."""
        return self._starts[-1] if self._starts else NO_OFFSET

    def assign(self, epoch: LeaderEpoch, start: Offset) -> bool:
        """Note that ``epoch`` begins at ``start``; True when that is news.

        An epoch that got no records gives way to one that begins at the same offset.
        """
        if epoch < 0 or epoch <= self.latest:
            return False
        while self._starts and self._starts[-1] >= start:
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start)
        return True

    def end_offset(self, epoch: LeaderEpoch, log_end: Offset) -> tuple[LeaderEpoch, Offset]:
        """The largest known epoch ≤ ``epoch`` and the offset where it ends; (-1, -1) when ``epoch`` is not known yet.

        Example: epochs 1 from 0 and 4 from 10, log end 15. Asked for 4: (4, 15); for 2: (1, 10), for 1 ends where 4
        begins; for 0: (0, 0), nothing of it is there; for 5, and for -1, which is no epoch: (-1, -1).
        """
        if not self._epochs or epoch == NO_EPOCH or epoch > self._epochs[-1]:
            return NO_EPOCH, NO_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end
        after = bisect_right(self._epochs, epoch)
        return (self._epochs[after - 1] if after else epoch), self._starts[after]

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """The epoch in which ``offset`` was written; -1 when that is before the first one."""
        after = bisect_right(self._starts, offset)
        return self._epochs[after - 1] if after else NO_EPOCH

    def truncate_from_end(self, end: Offset) -> bool:
        """Forget epochs that begin at or after the new log end; True when there were any."""
        count = len(self._starts)
        while self._starts and self._starts[-1] >= end:
            self._epochs.pop()
            self._starts.pop()
        return len(self._starts) != count

    def truncate_from_start(self, start: Offset) -> bool:
        """Forget epochs that end at or before the new log start; the one in force there begins there now."""
        keep = bisect_right(self._starts, start) - 1
        if keep < 0 or (keep == 0 and self._starts[0] == start):
            return False
        del self._epochs[:keep], self._starts[:keep]
        self._starts[0] = start
        return True
