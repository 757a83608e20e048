"""Reading in the background what lay on the disk before the start: damage is found before somebody asks for it.

A log is read in order, closed segments and the open one, as first_read checks what readers ask for; what those have
checked is not read again. What was read leaves the page cache, for it is what nobody needs at the moment. The thread
keeps to a rate, and to a tenth of its time however small the batches are, so that clients do not feel it.

The first batch of a log that is damaged is its :class:`~raylog.broker.storage.log.contents.Damage`. What becomes of
it is not the storage's to say: it stays, and reads of it fail, until the log is mended or truncated.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from raylog.broker.events import EventLog
from raylog.broker.storage.disk.files import FileClosed
from raylog.broker.storage.log.contents import Damage
from raylog.broker.storage.log.first_read import Stretch, check
from raylog.broker.storage.log.log import Log
from raylog.broker.storage.segments.held import SCAN_BYTES, HeldSegment, hold
from raylog.protocol.errors import StorageError
from raylog.protocol.ids import FilePosition, Offset

__all__ = ["Scrubber", "unread_bytes"]

logger = EventLog(__name__)

CHUNK_BYTES = 256 * 1024
"""How much is read at once, unless a batch is larger."""
REST = 9
"""How many times as long as it worked the thread rests at least."""
LOOK_S = 0.5
"""Time between two looks for what readers met, once all is read."""


def unread_bytes(log: Log) -> int:
    """Bytes that lay there at the start and were not checked since."""
    unread = (segment for segment in log.segments if segment.unchecked_end)
    return sum(max(segment.unchecked_end - segment.unchecked.checked, 0) for segment in unread)


class Scrubber:
    """See the module. :meth:`turn` is one thread's; :meth:`step` is what it does, for tests."""

    def __init__(
        self, logs: Callable[[], Iterable[Log]], rate: Callable[[], int], on_damage: Callable[[], None]
    ) -> None:
        """``logs``: all logs of usable directories; ``rate``: bytes a second, 0 to read nothing unasked; ``on_damage``
        is called, without a lock, when a log was found damaged.
        """
        self._logs = logs
        self._rate = rate
        self._on_damage = on_damage
        self._unread = list(logs())
        self._pause_s = 0.0

    def turn(self, stopping: threading.Event) -> bool:
        """Read once more, after a pause; False when ``stopping`` is set meanwhile."""
        if stopping.wait(self._pause_s):
            return False
        begun = time.monotonic()
        size = self.step()
        rate = self._rate() or size  # it may have been set to 0 meanwhile
        self._pause_s = max(size / rate, REST * (time.monotonic() - begun)) if size else LOOK_S
        return True

    def step(self) -> int:
        """Look into what readers met, then check the next bytes; answers how many were read, 0: there are none."""
        for log in self._logs():
            if log.is_suspect or log.damage is not None:
                self._guarded(self._examine, log)
        if self._rate() > 0:
            for log in self._unread.copy():
                if log.damage is not None:
                    continue  # it is read on once that is mended
                try:
                    size = self._guarded(self._read_next, log)
                except Exception:
                    self._unread.remove(log)  # the others are read on; what is asked for of it is checked then
                    raise
                if size:
                    return size
                if log.damage is None:
                    self._unread.remove(log)
        return 0

    def _guarded(self, work: Callable[[Log], int], log: Log) -> int:
        """Do file work on a log; none for one that was closed or whose disk has failed, which is told elsewhere."""
        if log.closed:
            return 0
        try:
            with log.health.guard(f"reading of {log.tp} in the background"):
                return work(log)
        except StorageError:
            return 0

    def _read_next(self, log: Log) -> int:
        """Check the first bytes that are unchecked."""
        for segment in log.segments:
            if segment.size and not segment.unchecked_end:
                continue
            try:
                with hold(segment) as held:
                    size = self._read_on(log, held)
            except FileClosed:
                continue  # deleted meanwhile
            if size is not None:
                return size
        return 0

    def _read_on(self, log: Log, held: HeldSegment) -> int | None:
        """Check the next bytes of a segment; None when none is left that is unchecked."""
        segment = held.segment
        unchecked = segment.unchecked
        if (position := unchecked.checked_to(0)) >= segment.unchecked_end:
            if gap := _gap_behind(log, held):
                self._found(log, held, gap)
                return 0
            segment.unchecked_end = 0
            return None
        found = _check_some(log, held, position, CHUNK_BYTES)
        if found.end > position:
            unchecked.add(position, found.end)
            if segment.sealed:
                held.forget(position, found.end - position)
        elif found.reason:
            unchecked.damaged[position] = found.reason
            return self._examine(log)
        return found.end - position

    def _examine(self, log: Log) -> int:
        """Find out where the damage begins that somebody met; answers how many bytes were read."""
        if log.damage is not None and self._is_over(log, log.damage):
            log.damage = None
        log.is_suspect = False
        size = 0
        segments = log.segments if log.damage is None else ()
        for segment, following in zip(segments, (*segments[1:], None), strict=False):
            if segment.unchecked.damaged or (following is not None and following.unchecked.damaged):
                try:
                    with hold(segment) as held:
                        size += self._examine_segment(log, held)
                except FileClosed:
                    continue  # deleted meanwhile
        return size

    def _is_over(self, log: Log, damage: Damage) -> bool:
        """Whether a known damage was deleted or cut off since, or is none."""
        try:
            with hold(damage.segment) as held, log.lock:
                return not _is_there(log, held, damage)
        except FileClosed:
            return True

    def _examine_segment(self, log: Log, held: HeldSegment) -> int:
        segment = held.segment
        position, offset = 0, segment.base_offset
        while position < segment.unchecked_end:
            found = _check_some(log, held, position, SCAN_BYTES, offset)
            if found.end == position:
                self._found(log, held, Damage(segment, FilePosition(position), offset, found.reason))
                return position
            segment.unchecked.add(position, found.end)
            assert found.next_offset is not None
            position, offset = found.end, found.next_offset
        if gap := _gap_behind(log, held):
            self._found(log, held, gap)
        return position

    def _found(self, log: Log, held: HeldSegment, damage: Damage) -> None:
        """Take note of a damage, unless truncation or deletion was what it looked like."""
        with log.lock:
            if log.damage is not None or not _is_there(log, held, damage):
                return
            log.damage = damage
        logger.error(
            "replica damaged",
            partition=log.tp,
            path=damage.segment.log_path,
            position=damage.position,
            offset=damage.offset,
            reason=damage.reason,
        )
        self._on_damage()


def _check_some(log: Log, held: HeldSegment, position: int, size: int, expected: Offset | None = None) -> Stretch:
    """Check about ``size`` bytes, one batch at least."""
    unchecked_end = held.segment.unchecked_end
    while True:
        end = min(position + size, unchecked_end)
        found = check(log, held, position, end, expected)
        if found.end > position or found.reason or end == unchecked_end:
            return found
        size *= 2


def _is_there(log: Log, held: HeldSegment, damage: Damage) -> bool:
    """Whether the log still has it, and it is one: the caller holds the lock, so that nothing is cut off meanwhile."""
    if not damage.is_in(log):
        return False
    is_gap = damage.position == damage.segment.size
    return is_gap or bool(_check_some(log, held, damage.position, CHUNK_BYTES, damage.offset).reason)


def _gap_behind(log: Log, held: HeldSegment) -> Damage | None:
    """What is missing behind the last batch of a file that lay there at the start and is good as far as it goes."""
    segment = held.segment
    if not segment.sealed or segment.unchecked_end != segment.size:
        return None
    with log.lock:
        end = log.end_of(segment)
    if segment.size and held.find(Offset(end - 1)) is not None:
        return None
    offset = segment.base_offset
    for _, header in held.headers():
        offset = Offset(header.next_offset)
    reason = f"the file ends there, before offset {end}"
    return Damage(segment, FilePosition(segment.size), offset, reason) if offset < end else None
