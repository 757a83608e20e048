"""◆ Which partitions a consumer reads, and from where.

A partition either has a *position*, the offset of the next record its user sees, or it is *looking for one*:
offsets have to be asked of its leader first. It looks for one end of the log after ``seek_to_…`` or when
nobody has said where to begin, and for both ends when its position turned out to be out of range, so that the
loss can be told with both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from raylog.client.read_errors import LogTruncated, PositionLost
from raylog.client.results import ConsumerRecord
from raylog.protocol.errors import OffsetOutOfRange
from raylog.protocol.ids import EARLIEST, LATEST, NO_TOPIC_ID, TopicPartition


class Jump(NamedTuple):
    """A position was out of range and the consumer reads on elsewhere, as auto.offset.reset says."""

    lost: PositionLost
    position: int | None
    """None: at a time, where that lies is asked next."""


class Place:
    """Where one assigned partition is being read."""

    __slots__ = (
        "_bounds", "_changed", "_lost_at", "_paused", "_target", "_truncated",
        "end", "epoch", "generation", "position", "topic_id", "tp",
    )  # fmt: skip

    def __init__(self, tp: TopicPartition, changed: dict[TopicPartition, None] | None = None) -> None:
        """``changed``: where to note each change, but for reading on."""
        self._changed = {} if changed is None else changed
        self.tp = tp
        self.position: int | None = None
        self.epoch = -1
        """The leader epoch of the last batch before the position, or of a later one; -1: not known."""
        self.end: int | None = None
        """One past the last offset that could be read when the leader answered last."""
        self.generation = 0
        """Grows with every jump, and when it is read no more: what was fetched or asked for an older one is void."""
        self.topic_id = NO_TOPIC_ID
        """The topic to read, while it is not known to be another; NO_TOPIC_ID: whichever has the name."""
        self._paused = False
        self._target: int | None = None
        self._lost_at: int | None = None
        self._bounds: dict[int, int] = {}
        self._truncated: LogTruncated | None = None

    @property
    def paused(self) -> bool:
        """True while nothing of it is handed out or fetched; the position stays."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._changed[self.tp] = None
        self._paused = paused
        self._changed[self.tp] = None

    @property
    def lag(self) -> int | None:
        """How many offsets the position is behind the end; None while either is not known."""
        position, end = self.position, self.end
        return None if position is None or end is None else max(0, end - position)

    def move(self, generation: int, position: int, epoch: int | None = None) -> bool:
        """Read on from ``position``, behind what was read for ``generation``; ``epoch`` is that of the batch before it.

        False where the place went elsewhere since: then what was read is not to be handed out. A seek that another
        thread, or a signal handler, does meanwhile holds: neither comes between lines without a call.
        """
        if self.generation != generation:
            return False
        self.position = position
        if epoch is not None:
            self.epoch = epoch
        return True

    def one_by_one(self, generation: int, records: Iterable[ConsumerRecord]) -> Iterator[ConsumerRecord]:
        """``records``, read for ``generation``, from the position on, which moves behind each before the user has it.

        Ends early once the user went elsewhere, by a seek, a pause or an assignment, or read on by another call.
        """
        position = self.position
        for record in records:
            if self.generation != generation or self._paused or self.position != position:
                return
            self.position = position = record.offset + 1
            yield record

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Read on from ``offset``, with ``epoch`` that of the batch before it; -1: not known."""
        self._jump(offset, None, epoch)

    def seek_to(self, target: int) -> None:
        """Read on from EARLIEST, LATEST, or the first record at or after a time in ms since 1970: to be asked. Where
        no record is so young, that is the end as it was just before the question."""
        self._jump(None, target)

    def lose(self, target: int | None) -> None:
        """The position is out of range; read on from ``target``, or from nowhere (None), once both ends are
        known."""
        lost_at = self.position
        self._jump(None, target)
        self._lost_at = lost_at

    def truncated(self, error: LogTruncated) -> None:
        """What was read is not in the log; the user, who is told, has to say where to go on."""
        self._jump(None, None)
        self._truncated = error

    def questions(self) -> tuple[int, ...]:
        """The ends still to be asked for; nothing while there is a position. Raises OffsetOutOfRange without
        a target."""
        if self.position is not None:
            return ()
        if self._truncated is not None:
            raise self._truncated
        if self._lost_at is not None:
            return tuple(end for end in (EARLIEST, LATEST) if end not in self._bounds)
        if self._target is None:
            raise OffsetOutOfRange(f"{self.tp}: no position to read from; seek, or set auto.offset.reset")
        if self._target >= 0 and LATEST not in self._bounds:
            return (LATEST,)  # known first: what is written between the two answers must not be left out
        return (self._target,)

    def answer(self, end: int, offset: int, epoch: int = -1) -> Jump | None:
        """The log's ``end`` is at ``offset``, in leader ``epoch``.

        Returns what there is to report once that settles a lost position.
        Raises PositionLost, each time again, when there is nowhere to read on from.
        """
        self._bounds[end] = offset
        if self._lost_at is None:
            if end == self._target:
                self._changed[self.tp] = None
                self.position = offset if offset >= 0 else self._bounds[LATEST]
                self.epoch = epoch
                self._changed[self.tp] = None
            return None
        if self.questions():
            return None
        lost_at = self._lost_at
        lost = PositionLost(self.tp, lost_at, self._bounds[EARLIEST], self._bounds[LATEST])
        if lost.earliest <= lost_at <= lost.end:
            self.seek(lost_at)  # it is there after all: a broker that lagged had refused it
            return None
        if self._target is None:
            self._bounds.clear()
            raise lost
        if self._target >= 0:
            self.seek_to(self._target)
            return Jump(lost, None)
        target = self._bounds[self._target]
        self.seek(target)
        return Jump(lost, target)

    def _jump(self, position: int | None, target: int | None, epoch: int = -1) -> None:
        self._changed[self.tp] = None  # an interrupt may come between
        self.position = position
        self.epoch = epoch
        self._truncated = None
        self.generation += 1
        self._target = target
        self._lost_at = None
        self._bounds = {}
        self._changed[self.tp] = None  # another thread may have looked already


class Subscription:
    """All assigned partitions. ``reset``: EARLIEST, LATEST, or None to raise an error; or what answers the time in ms
    since 1970 to begin at."""

    def __init__(self, reset: int | Callable[[], int] | None) -> None:
        self._reset = reset
        self._places: dict[TopicPartition, Place] = {}
        self.changed: dict[TopicPartition, None] = {}
        """Partitions that came, went, were paused or sent elsewhere since somebody took them out, by ``popitem``."""

    @property
    def reset(self) -> int | None:
        """Where to read when there is no position: see :meth:`Place.seek_to`; None: nowhere."""
        return self._reset() if callable(self._reset) else self._reset

    def __iter__(self) -> Iterator[Place]:
        """The places of now: they may come and go meanwhile."""
        return iter(list(self._places.values()))

    def topics(self) -> set[str]:
        """Those that partitions are read of now."""
        return {tp.topic for tp in list(self._places)}

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._places

    def __getitem__(self, tp: TopicPartition) -> Place:
        return self._places[tp]

    def get(self, tp: TopicPartition) -> Place | None:
        return self._places.get(tp)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Exactly these partitions; those that stay keep their positions."""
        before, places = self._places, dict[TopicPartition, Place]()
        for tp in partitions:
            if tp not in places:
                places[tp] = before.get(tp) or self._new(tp)
        changed = dict.fromkeys([*before, *places])
        self.changed.update(changed)  # an interrupt may come between
        self._places = places
        self.changed.update(changed)  # another thread may have looked already
        for tp, place in before.items():
            if tp not in places:
                self._end(place)

    def add(self, tp: TopicPartition) -> Place:
        """This partition, too, from where ``reset`` says."""
        place = self._new(tp)
        self.changed[tp] = None
        self._places[tp] = place
        self.changed[tp] = None
        return place

    def _new(self, tp: TopicPartition) -> Place:
        place = Place(tp, self.changed)
        if (reset := self.reset) is not None:
            place.seek_to(reset)
        return place

    def remove(self, tp: TopicPartition) -> None:
        """Not this partition any more."""
        self.changed[tp] = None
        place = self._places.pop(tp, None)
        if place is not None:
            self._end(place)

    def _end(self, place: Place) -> None:
        place.generation += 1
        self.changed[place.tp] = None
