"""◆ What a member of a group of actors has claimed, and what it may do with that: commit and give up.

A claim holds as long as nobody else has claimed the partition; each write with it names the version that says so (D9b,
``offsets``). A write whose answer was lost may have been made: then the registry is read, first the version of the
offset, then the owner's node. If that is of our session, nobody else has claimed since, and the version is good to go
on with.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from raylog.coordination import group_paths
from raylog.coordination.group_events import (
    Claimed,
    ClaimInDoubt,
    ClaimLost,
    ClaimRefused,
    Event,
    Released,
    ReleaseFailed,
)
from raylog.coordination.group_model import CommittedOffset
from raylog.coordination.node_json import CorruptMetadata
from raylog.coordination.offsets import Claim, RegistryOffsetStore, parts_of_claimed
from raylog.coordination.store import (
    ANY_VERSION,
    BadVersion,
    Check,
    MetadataStore,
    NodeExists,
    StoreError,
    StoreUnavailable,
)
from raylog.protocol.errors import IllegalGeneration, RequestTimedOut
from raylog.protocol.ids import GroupId, MemberId, TopicPartition

__all__ = ["GroupClaims"]

log = logging.getLogger(__name__)


class GroupClaims:
    """The claims of one member, made while it is registered. One thread calls it."""

    def __init__(self, store: MetadataStore, group: GroupId, member_id: MemberId) -> None:
        self._group = group
        self._id = member_id
        self._offsets = RegistryOffsetStore(store)
        self.registration = Check(group_paths.member(group, member_id), 0)
        """Fails once the member's node is gone, which was made in this very session."""
        self._claims: dict[TopicPartition, Claim] = {}
        self._in_doubt: set[TopicPartition] = set()

    def get(self, tp: TopicPartition) -> Claim | None:
        """The claim on ``tp``, if it is held."""
        return self._claims.get(tp)

    def session_lost(self) -> None:
        """All of them ended with the session."""
        self._claims.clear()
        self._in_doubt.clear()

    def claim(self, tp: TopicPartition) -> Event:
        """Claimed, ClaimRefused or ClaimInDoubt."""
        try:
            try:
                claim: Claim | None = self._offsets.claim(self._group, tp, self._id, (self.registration,))
            except NodeExists:
                claim = self._renewed(tp)  # ours, if the answer to an earlier try was lost
                if claim is not None:
                    claim = claim._replace(committed=self._offsets.fetch(self._group, [tp]).get(tp))
        except StoreUnavailable:
            self._in_doubt.add(tp)
            return ClaimInDoubt(tp)
        except CorruptMetadata as error:
            log.error("group %s cannot read %s: %s; reset its offset", self._group, tp, error)
            self._in_doubt.add(tp)
            return ClaimInDoubt(tp)
        except StoreError:
            self._forget(tp)
            return ClaimRefused(tp)
        self._forget(tp)
        if claim is None:
            return ClaimRefused(tp)
        self._claims[tp] = claim
        return Claimed(tp)

    def release(self, tp: TopicPartition, position: CommittedOffset | None) -> Event:
        """Released, ReleaseFailed or ClaimLost; ``position`` is committed in the same write."""
        try:
            claim = self._claims.get(tp) or self._renewed(tp)
            if claim is not None and not self._released(claim, position):
                claim = self._renewed(tp)
                if claim is not None and not self._released(claim, position):
                    claim = None
        except StoreError:
            return ReleaseFailed(tp)
        self._forget(tp)
        return ClaimLost(tp) if claim is None else Released(tp)

    def _released(self, claim: Claim, position: CommittedOffset | None) -> bool:
        try:
            self._offsets.release(claim, position)
        except BadVersion:
            return False
        return True

    def _forget(self, tp: TopicPartition) -> None:
        self._claims.pop(tp, None)
        self._in_doubt.discard(tp)

    def _renewed(self, tp: TopicPartition) -> Claim | None:
        """The claim with its version in the registry; None when the owner's node is not of our session."""
        try:
            return self._offsets.renew(Claim(self._group, tp, None, ANY_VERSION, (self.registration,)))
        except BadVersion:
            return None

    def abandon(self) -> None:
        """Leave no owner's node behind of which the member knows nothing: it was evicted, or answers were lost.

        Raises StoreError.
        """
        for tp in [*self._claims, *self._in_doubt]:
            claim = self._renewed(tp)
            if claim is not None:
                try:
                    self._offsets.release(claim._replace(guards=()))
                except BadVersion:
                    pass  # evicted just now, and claimed by another
            self._forget(tp)

    # --- commits ---

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commit by the claims that are held, all or none (of 500 partitions with 1 KB of metadata each).

        Raises IllegalGeneration for a partition that the member does not own or that another has claimed,
        RequestTimedOut when the store does not answer: it may have been committed.
        """
        self._check_owned(offsets)
        for part in parts_of_claimed(self._group, offsets):
            try:
                if not self._committed(part):
                    self._renew(part)
                    self._check_owned(part)
                    if not self._committed(part):
                        raise BadVersion(f"{', '.join(map(str, part))} changed twice meanwhile")
            except StoreError as error:
                raise RequestTimedOut(
                    f"what was committed in group {self._group} may have been written or not: {error}; commit again"
                ) from error

    def _check_owned(self, offsets: Iterable[TopicPartition]) -> None:
        if lost := sorted(tp for tp in offsets if tp not in self._claims):
            raise IllegalGeneration(
                f"{', '.join(map(str, lost))}: member {self._id} of group {self._group} does not own that, or another "
                "has claimed it since: what it would have committed is read again by the owner"
            )

    def _committed(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> bool:
        staged = self._offsets.stage([(self._claims[tp], committed) for tp, committed in offsets.items()])
        try:
            claims = self._offsets.commit(staged)
        except BadVersion:
            return False
        self._claims |= {claim.tp: claim for claim in claims}
        return True

    def _renew(self, partitions: Iterable[TopicPartition]) -> None:
        """Find out which of the claims still stand."""
        for tp in partitions:
            claim = self._renewed(tp)
            if claim is None:
                self._forget(tp)
            else:
                self._claims[tp] = claim
