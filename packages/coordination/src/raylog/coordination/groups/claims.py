"""What a member of a group of actors has claimed, and what it may do with that: commit and give up.

A claim holds as long as nobody else has claimed the partition; each write with it names the version that says so (D9b,
``offsets``). A write whose answer was lost may have been made: then the registry is read, first the version of the
offset, then the owner's node. If that is of our session, nobody else has claimed since, and the version is good to go
on with.

A claim ends in one of three ways. It is given up, with a last commit; or another has the partition; or the topic is
deleted, though another may have its name already. In each the owner's node of this session goes: left behind it would
keep everybody from the partition as long as this process lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from raylog.coordination.groups.offset_nodes import parts_of_claimed
from raylog.coordination.groups.offsets import Claim, RegistryOffsetStore
from raylog.coordination.host.clocks import monotonic_ms
from raylog.coordination.metadata import group_paths, paths
from raylog.coordination.metadata.group_events import (
    Claimed,
    ClaimInDoubt,
    ClaimLost,
    ClaimRefused,
    Event,
    Released,
    ReleaseFailed,
)
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.coordination.metadata.topic_ids import TopicGone, check_topic
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.coordination.store.port import (
    BadVersion,
    Check,
    EventSink,
    MetadataStore,
    NodeExists,
    NoNode,
    StoreError,
    StoreUnavailable,
)
from raylog.coordination.store.unreadable import tell
from raylog.protocol.errors import IllegalGeneration, RaylogError, RequestTimedOut, UnknownTopicOrPartition
from raylog.protocol.ids import NO_TOPIC_ID, GroupId, MemberId, MonotonicMs, TopicId, TopicPartition
from raylog.protocol.logs import Logger

__all__ = ["GroupClaims"]

log = Logger(__name__)

REFUSED_TOLD_AFTER_MS = 5_000
"""More than the time between two tries."""
REFUSED_TOLD_EVERY_MS = 60_000
"""While a claim is refused, the log tells so this often: a rebalance refuses some for a moment."""


class _Refused(NamedTuple):
    """A claim that is tried in vain."""

    since_ms: MonotonicMs
    tell_ms: MonotonicMs
    last_ms: MonotonicMs
    """When it was tried last."""


class GroupClaims:
    """The claims of one member, made while it is registered. One thread calls it."""

    def __init__(
        self,
        store: MetadataStore,
        group: GroupId,
        member_id: MemberId,
        now_ms: Callable[[], MonotonicMs] = monotonic_ms,
    ) -> None:
        self._store = store
        self._group = group
        self._id = member_id
        self._now_ms = now_ms
        self._offsets = RegistryOffsetStore(store)
        self.registration = Check(group_paths.member(group, member_id), 0)
        """Fails once the member's node is gone, which was made in this very session."""
        self._claims: dict[TopicPartition, Claim] = {}
        self._in_doubt: set[TopicPartition] = set()
        self._refused: dict[TopicPartition, _Refused] = {}
        self._watched: set[TopicId] = set()
        """Topics whose deletion a watch will tell."""
        self._has_unwatched = False
        """There may be a claim on another topic."""

    def get(self, tp: TopicPartition) -> Claim | None:
        """The claim on ``tp``, if it is held."""
        return self._claims.get(tp)

    def session_lost(self) -> None:
        """All of them ended with the session."""
        self._claims.clear()
        self._in_doubt.clear()
        self._watched.clear()

    def claim(self, tp: TopicPartition) -> Event:
        """Claimed, ClaimRefused or ClaimInDoubt."""
        try:
            claim = self._offsets.claim(self._group, tp, self._id, (self.registration,))
        except StoreUnavailable:
            self._in_doubt.add(tp)
            return ClaimInDoubt(tp)
        except CorruptMetadata as error:
            tell(error)
            self._tell_refused(tp, error)
            self._in_doubt.add(tp)
            return ClaimInDoubt(tp)
        except StoreError as error:
            self._tell_refused(tp, error)
            if tp in self._in_doubt and not isinstance(error, NodeExists):
                return ClaimInDoubt(tp)  # what an earlier try may have made is there still
            self._forget(tp)
            return ClaimRefused(tp)
        self._forget(tp)
        self._refused.pop(tp, None)
        self._claims[tp] = claim
        self._has_unwatched = True
        return Claimed(tp)

    def _tell_refused(self, tp: TopicPartition, error: RaylogError) -> None:
        now_ms = self._now_ms()
        refused = self._refused.get(tp)
        if refused is None or now_ms - refused.last_ms > REFUSED_TOLD_AFTER_MS:  # it was not wanted meanwhile
            refused = _Refused(now_ms, MonotonicMs(now_ms + REFUSED_TOLD_AFTER_MS), now_ms)
        is_due = now_ms >= refused.tell_ms
        tell_ms = MonotonicMs(now_ms + REFUSED_TOLD_EVERY_MS) if is_due else refused.tell_ms
        self._refused[tp] = _Refused(refused.since_ms, tell_ms, now_ms)
        if not is_due:
            return
        log.warning(
            "group %s: member %s has tried to claim %s for %d s in vain, %s (%s): it goes on trying",
            self._group, self._id, tp, (now_ms - refused.since_ms) // 1000, self._owner_of(tp), error,
        )  # fmt: skip

    def _owner_of(self, tp: TopicPartition) -> str:
        try:
            found = self._store.get(group_paths.owner(self._group, tp))
        except StoreError:
            return "its owner cannot be read"
        return "nobody owns it" if found is None else f"{found.data.decode(errors='replace')} owns it"

    def release(self, tp: TopicPartition, position: CommittedOffset | None) -> Event:
        """Released, ReleaseFailed or ClaimLost; ``position`` is committed in the same write.

        ClaimLost: it was not ours any more, and ``position`` was not committed.
        """
        try:
            is_released = self._given_up(tp, position)
        except StoreError:
            return ReleaseFailed(tp)
        self._forget(tp)
        self._refused.pop(tp, None)
        return Released(tp) if is_released else ClaimLost(tp)

    def _given_up(self, tp: TopicPartition, position: CommittedOffset | None) -> bool:
        claim = self._claims.get(tp)
        for _ in range(2):
            if claim is None:
                break
            try:
                self._offsets.release(claim, position)
            except TopicGone:
                break  # what was read of it matters to nobody
            except BadVersion:
                claim = self._renewed(claim)
            else:
                return True
        return self._disown(tp)

    def _disown(self, tp: TopicPartition) -> bool:
        """Delete the owner's node, if it is this member's; False when it is not."""
        try:
            return self._offsets.disown(self._group, tp, self._id, (self.registration,))
        except (BadVersion, NoNode) as error:
            if error.index:
                raise
        return self._offsets.disown(self._group, tp, self._id)  # evicted: nobody else deletes what is left of it

    def _forget(self, tp: TopicPartition) -> None:
        self._claims.pop(tp, None)
        self._in_doubt.discard(tp)

    def _renewed(self, claim: Claim) -> Claim | None:
        """The claim with its version in the registry; None when it holds no more."""
        try:
            return self._offsets.renew(claim)
        except (BadVersion, TopicGone, NodeExists):
            return None

    def abandon(self) -> None:
        """Leave no owner's node behind of which the member knows nothing: it was evicted, or answers were lost.

        Raises StoreError.
        """
        for tp in [*self._claims, *sorted(self._in_doubt)]:
            self._disown(tp)
            self._forget(tp)

    # --- topics that are deleted ---

    def of_deleted_topics(self, sink: EventSink) -> list[TopicPartition]:
        """What is claimed of topics that are deleted, and has to be given up; ``sink`` hears when there is more.

        Raises StoreError.
        """
        if not self._has_unwatched:
            return []
        topics = {claim.topic_id for claim in self._claims.values()} - {NO_TOPIC_ID}
        self._watched &= topics
        gone = {topic for topic in sorted(topics - self._watched) if self._is_gone(topic, sink)}
        self._has_unwatched = False
        return [tp for tp, claim in self._claims.items() if claim.topic_id in gone]

    def _is_gone(self, topic: TopicId, sink: EventSink) -> bool:
        if self._store.exists(paths.topic_id(topic), sink) is None:
            return True
        self._watched.add(topic)
        return False

    def topics_may_be_gone(self, path: str | None = None) -> None:
        """The watch of this node has told something; None: all watches are lost."""
        self._watched = {topic for topic in self._watched if path not in (None, paths.topic_id(topic))}
        self._has_unwatched = True

    # --- commits ---

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commit by the claims that are held, all or none (of 500 partitions with 1 KB of metadata each).

        Raises IllegalGeneration for a partition that the member does not own or that another has claimed,
        UnknownTopicOrPartition for one whose topic is deleted, RequestTimedOut when the store does not answer: it may
        have been committed.
        """
        self._check_owned(offsets)
        for part in parts_of_claimed(self._group, offsets):
            try:
                if not self._committed(part):
                    self._renew(part)
                    self._check_owned(part)
                    if not self._committed(part):
                        raise BadVersion(f"{', '.join(map(str, part))} changed twice meanwhile")
            except TopicGone as error:
                lost = sorted(tp for tp in part if self._is_of(error, tp))
                for tp in lost:
                    del self._claims[tp]
                raise UnknownTopicOrPartition(
                    f"{', '.join(map(str, lost))}: the topic that member {self._id} of group {self._group} read is "
                    f"deleted, also if another of its name is there: of {len(part)} partitions that were to be written "
                    "at once, with these, nothing was committed"
                ) from error
            except StoreError as error:
                raise RequestTimedOut(
                    f"what was committed in group {self._group} may have been written or not: {error}; commit again"
                ) from error

    def _is_of(self, error: TopicGone, tp: TopicPartition) -> bool:
        return any(check.path == error.path for check in check_topic(self._claims[tp].topic_id))

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
            claim = self._renewed(self._claims[tp])
            if claim is None:
                self._forget(tp)
            else:
                self._claims[tp] = claim
