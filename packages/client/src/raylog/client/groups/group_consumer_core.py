"""◆ A consumer's partitions while it is in a group: they come and go, and what was read of them is committed.

What the membership tells is taken up by the thread that polls, one :class:`Step` after the other, and only when the
user has come back for more. So everything that was handed out before counts as processed: a position is never
committed while its record is still in the user's hands (at least once).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from raylog.client.fetch.subscription import Place, Subscription
from raylog.client.groups.changes import Assigned, Change, Lost, Revoked
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.protocol.errors import InvalidRequest, OffsetMetadataTooLarge
from raylog.protocol.ids import LeaderEpoch, MonotonicMs, Offset, TopicPartition

Offsets = Mapping[TopicPartition, CommittedOffset]


class Step(NamedTuple):
    """What the user is told at once of partitions, for whose listener there is a method of each kind."""

    kind: type[Change]
    """Assigned: they are in the subscription, with their positions, already; Revoked: their owner may still commit."""
    partitions: tuple[TopicPartition, ...]


class _Told(NamedTuple):
    """What the membership has told; replaced whole, so that an interrupt leaves what was before or what is to be."""

    heard: int = 0
    """The number of the last change."""
    changes: tuple[Change, ...] = ()
    """What of it comes behind the step."""
    step: Step | None = None
    """What the user is being told."""


class GroupCore:
    """What of the group's partitions is in the subscription, and what of it is not committed yet.

    One thread uses it, as it does the subscription.
    """

    def __init__(
        self,
        subscription: Subscription,
        *,
        auto_commit: bool,
        auto_store: bool = True,
        auto_commit_interval_ms: int,
        max_metadata_bytes: int,
    ) -> None:
        self.auto_commit = auto_commit
        self._stored: dict[TopicPartition, CommittedOffset] | None = None if auto_store else {}
        """What the user has processed, where he says it himself."""
        self._subscription = subscription
        self._interval_ms = auto_commit_interval_ms
        self._max_metadata_bytes = max_metadata_bytes
        self._due_ms: MonotonicMs | None = None
        self._told = _Told()
        self._committed: dict[TopicPartition, Offset] = {}

    @property
    def heard(self) -> int:
        """The number of the last change that it heard of."""
        return self._told.heard

    def hear(self, last: int, changes: Iterable[Change]) -> None:
        """What the membership told, in order, and the number of the last of it."""
        kept = _without_what_is_over([*self._told.changes, *changes])
        self._told = _Told(last, tuple(kept), self._told.step)

    def next_step(self) -> Step | None:
        """What the user is to be told next, the same until :meth:`done`. None when that is all."""
        while self._told.step is None and (changes := self._told.changes):
            kind = type(changes[0])
            now = list(takewhile(lambda change: type(change) is kind, changes))  # noqa: B023 (it is used up here)
            for change in now:
                if isinstance(change, Assigned):
                    self._assign(change)
            told = tuple(sorted(change.tp for change in now if change.tp in self._subscription))
            step = Step(kind, told) if told else None
            self._told = _Told(self._told.heard, changes[len(now) :], step)
        return self._told.step

    def done(self) -> None:
        """The user was told."""
        if self._told.step is not None and self._told.step.kind is Assigned:
            self._told = self._told._replace(step=None)
        else:
            self.decline()

    def decline(self) -> None:
        """The partitions of this step are not read: they are gone, or came when the user was about to leave."""
        for tp in () if self._told.step is None else self._told.step.partitions:
            self._subscription.remove(tp)
            self._committed.pop(tp, None)
            if self._stored is not None:
                self._stored.pop(tp, None)
        self._told = self._told._replace(step=None)

    def owned(self) -> tuple[TopicPartition, ...]:
        """All partitions that the user was told of and not told that they are gone, in order."""
        return tuple(sorted(place.tp for place in self._subscription))

    def reads(self, place: Place) -> bool:
        """False once it was given up, also where the partition came back since."""
        return self._subscription.get(place.tp) is place

    # --- what to commit ---

    def positions(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, CommittedOffset]:
        """Positions, or what was stored, that are not committed, of these partitions or of all; without those that are
        being looked for."""
        places = list(
            filter(None, self._subscription if partitions is None else map(self._subscription.get, partitions))
        )
        if self._stored is None:
            found = {
                place.tp: CommittedOffset(Offset(place.position), LeaderEpoch(place.epoch))
                for place in places
                if place.position is not None
            }
        else:
            found = {place.tp: self._stored[place.tp] for place in places if place.tp in self._stored}
        return {tp: committed for tp, committed in found.items() if self._committed.get(tp) != committed.offset}

    def store(self, offsets: Offsets) -> None:
        """These are processed. Raises as :meth:`check`, InvalidRequest for what is not owned or stored by itself."""
        if self._stored is None:
            raise InvalidRequest(
                "store_offsets: positions are stored by themselves; set enable.auto.offset.store=false"
            )
        self.check(offsets)
        for tp in offsets:
            if tp not in self._subscription:
                raise InvalidRequest(f"store_offsets: {tp} is not this consumer's")
        self._stored.update(offsets)

    def due(self, now_ms: MonotonicMs) -> dict[TopicPartition, CommittedOffset]:
        """What to commit now by itself: once an interval, if there is anything."""
        if not self.auto_commit:
            return {}
        if self._due_ms is None:
            self._due_ms = MonotonicMs(now_ms + self._interval_ms)
        if now_ms < self._due_ms:
            return {}
        self._due_ms = MonotonicMs(now_ms + self._interval_ms)
        return self.positions()

    def due_in_ms(self, now_ms: MonotonicMs) -> int | None:
        """How long until :meth:`due` may have something; None when it never will."""
        if not self.auto_commit:
            return None
        return self._interval_ms if self._due_ms is None else max(0, self._due_ms - now_ms)

    def committed(self, offsets: Offsets) -> None:
        """These were."""
        self._committed.update((tp, committed.offset) for tp, committed in offsets.items() if tp in self._subscription)

    def check(self, offsets: Offsets) -> None:
        """Raises InvalidRequest for a negative offset, OffsetMetadataTooLarge for too much text beside it."""
        for tp, committed in offsets.items():
            if committed.offset < 0:
                raise InvalidRequest(f"{tp}: offset {committed.offset} is negative: nothing can be read from there on")
            size = len(committed.metadata.encode())
            if size > self._max_metadata_bytes:
                raise OffsetMetadataTooLarge(
                    f"{tp}: {size} bytes of metadata beside the offset, the cluster allows {self._max_metadata_bytes} "
                    "(offset.metadata.max.bytes)"
                )

    def _assign(self, assigned: Assigned) -> None:
        place: Place = self._subscription.add(assigned.tp)
        place.topic_id = assigned.topic_id
        if assigned.committed is not None:
            place.seek(assigned.committed.offset, assigned.committed.leader_epoch)
            self._committed[assigned.tp] = assigned.committed.offset


def _without_what_is_over(changes: Sequence[Change]) -> list[Change]:
    """A partition that was lost was not revoked in good order, and of one assigned in between nobody heard."""
    kept: list[Change] = []
    lost: dict[TopicPartition, Lost] = {}
    for change in reversed(changes):
        match change:
            case Lost(tp):
                if tp not in lost:
                    lost[tp] = change
                    kept.append(change)
            case Revoked(tp):
                if tp not in lost:
                    kept.append(change)
            case Assigned(tp):
                if tp in lost:
                    kept.remove(lost.pop(tp))
                else:
                    kept.append(change)
    kept.reverse()
    return kept
