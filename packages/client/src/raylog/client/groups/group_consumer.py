"""A consumer's side of a group of actors: tells its user of partitions that come and go, and commits.

All of it runs in the thread that polls, or in the event loop (``groups.calls``). The membership has a thread of its
own, which only notes what happened and wakes a poll that waits; see ``group_consumer_core`` for when it is taken up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from inspect import GEN_SUSPENDED, getgeneratorstate
from re import Pattern
from typing import Protocol
from weakref import ref

from raylog.client.fetch.subscription import Place
from raylog.client.groups.calls import Call, Calls
from raylog.client.groups.changes import Assigned, Change, Revoked
from raylog.client.groups.group_consumer_core import GroupCore, Offsets, Step
from raylog.client.network.metadata import Metadata
from raylog.client.results import ConsumerRecord
from raylog.coordination.groups.offsets import CommittedOffset, OffsetStore
from raylog.coordination.host.clocks import monotonic_ms, wall_ms
from raylog.coordination.store.port import StoreUnavailable
from raylog.protocol.errors import InvalidRequest, RequestTimedOut
from raylog.protocol.ids import Generation, GroupId, MemberId, MonotonicMs, TopicName, TopicPartition
from raylog.protocol.logs import Logger

log = Logger(__name__)

_LEAST_MS = 100
_MOST_MS = 1_000
"""A poll that waits looks after the membership this often: the user is alive, and what he was handed gets committed."""


class RebalanceListener(Protocol):
    """What a group's consumer tells of its partitions: a base class without actions, or any object with these methods.

    They are called by the thread that polls, only inside a poll or close, and may use the consumer: seek, position,
    commit, pause. What they raise, the poll raises.
    """

    def on_assigned(self, partitions: Sequence[TopicPartition], /) -> None:
        """They are this consumer's from now on, and nothing was read of them yet: seek to read from elsewhere than the
        committed offset. After it raised, the next poll calls it again, before anything of them is handed out."""
        return

    def on_revoked(self, partitions: Sequence[TopicPartition], /) -> None:
        """Another is to have them, or the consumer closes: the last chance to commit. After it raised, their positions
        are not committed."""
        return

    def on_lost(self, partitions: Sequence[TopicPartition], /) -> None:
        """They are gone, and others may read them already: nothing of them can be committed any more."""
        return


class AnyListener(Protocol):
    """A listener of either kind: an AsyncConsumer awaits what its methods answer, if that can be."""

    def on_assigned(self, partitions: Sequence[TopicPartition], /) -> object: ...

    def on_revoked(self, partitions: Sequence[TopicPartition], /) -> object: ...

    def on_lost(self, partitions: Sequence[TopicPartition], /) -> object: ...


class Membership(Protocol):
    """What :class:`~raylog.client.groups.member.GroupMember` is to a consumer. It works in a thread of its own."""

    @property
    def member_id(self) -> MemberId: ...

    @property
    def generation(self) -> Generation:
        """Of the assignment that it acts on."""

    def untold(self, heard: int) -> tuple[int, Sequence[Change]]:
        """What happened and was not heard yet, in order, and the number of the last of it: ``heard`` is that of the
        last that was."""

    def quiet(self, tp: TopicPartition, position: CommittedOffset | None) -> None:
        """After Revoked: nothing of it is handed out any more; commit ``position`` as it is given up."""

    def may_deliver(self, tp: TopicPartition) -> bool:
        """True while it is owned, in the session that claimed it, and the lease holds."""

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """All of them or none. Raises UnknownMemberId or IllegalGeneration for what is not owned (any more), and
        RequestTimedOut when ZooKeeper does not answer: then it may have been committed."""

    def commit_async(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> Future[None]:
        """As :meth:`commit`, in the order of the calls, without waiting."""

    def polled(self) -> None:
        """The user is alive: ``max.poll.interval.ms`` is counted from here. Joins anew where it was over; raises what
        has ended the membership for good."""

    def leave(self, timeout_s: float, positions: Mapping[TopicPartition, CommittedOffset]) -> bool:
        """Give everything up, committing ``positions``, and sign off. False when that takes longer: then the group
        learns it from the end of the session."""


class GroupReader:
    """What a consumer does because it is in a group."""

    def __init__(
        self,
        group: GroupId,
        topics: frozenset[TopicName] | Pattern[str],
        join: Callable[[Callable[[], None]], Membership],
        core: GroupCore,
        offsets: OffsetStore,
        listener: AnyListener,
        metadata: Metadata,
        came_through: Callable[[Offsets], None],
        wake: Callable[[], None],
        left: Callable[[], None],
        *,
        clock: Callable[[], int] = monotonic_ms,
    ) -> None:
        """``join`` is given what to call, from any thread, when the membership has changes, and answers it.

        ``came_through`` is called with what was committed; ``wake`` ends a poll's waiting; ``left`` is called last.
        """
        self._group = group
        self._core = core
        self._offsets = offsets
        self._listener = listener
        self._metadata = metadata
        self._came_through = came_through
        self._wake = wake
        self._left = left
        self._clock = clock
        self._notices = 1
        """How often the membership said that it has changes."""
        self._noticed = 0
        """How many of these are heeded."""
        self._telling: Callable[[], Calls[None] | None] = lambda: None
        """The last call of the listener, while it lives; that it is under way is its own state, which no interrupt can
        keep from being reset."""
        self._again_ms = 0
        """When to attend again."""
        self._missing = set() if isinstance(topics, Pattern) else set(topics)
        """Topics that are read by name and that no broker knows."""
        self._told_missing: set[str] = set()
        self._seen_version = -1
        """Of the metadata."""
        metadata.want(self._missing)
        self._committing: deque[tuple[Future[None], dict[TopicPartition, CommittedOffset]]] = deque()
        """Commits under way, in order."""
        self.member = join(self._notice)

    def attend(self) -> Calls[float]:
        """Before a round of polling: take up what happened, commit what is due. After how many ms to come again.

        Raises what the listener raises; what comes behind it is taken up the next time.
        """
        self.check_no_listener("poll")
        self.member.polled()
        yield from self._take_up()
        now_ms = MonotonicMs(self._clock())
        self._settle()
        if not self._committing and (due := self._core.due(now_ms)):
            self._commit_async(_stamped(due)).add_done_callback(self._tell_failure)
        self._look_for_topics()
        due_ms = self._core.due_in_ms(now_ms)
        again_ms = _MOST_MS if due_ms is None else min(max(due_ms, _LEAST_MS), _MOST_MS)
        self._again_ms = now_ms + again_ms
        return again_ms

    def while_owned(self, place: Place, records: Iterable[ConsumerRecord]) -> Iterator[ConsumerRecord]:
        """Those of ``records``, handed out one by one, that the user may have before :meth:`attend` is called again."""
        for record in records:
            if (
                self._notices != self._noticed
                or self._clock() >= self._again_ms
                or not self.member.may_deliver(place.tp)
                or not self._core.reads(place)
            ):
                return
            yield record

    def commit(self, offsets: Offsets | None) -> None:
        """These offsets, by default all positions; all or none. See Membership."""
        wanted = self._wanted(offsets)
        if not wanted:
            return
        self.member.commit(wanted)
        self._settle()
        self._note(wanted)

    def commit_async(self, offsets: Offsets | None) -> Future[None]:
        """As :meth:`commit`, without waiting."""
        wanted = self._wanted(offsets)
        if wanted:
            return self._commit_async(wanted)
        nothing: Future[None] = Future()
        nothing.set_result(None)
        return nothing

    def store(self, offsets: Offsets) -> None:
        """As ``Consumer.store_offsets``."""
        self._core.store(offsets)

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedOffset | None]:
        """What the group, whoever of it, has committed. Raises RequestTimedOut."""
        try:
            found = self._offsets.fetch(self._group, partitions)
        except StoreUnavailable as error:
            raise RequestTimedOut(f"group {self._group}: its offsets cannot be read now: {error}") from error
        return {tp: found.get(tp) for tp in partitions}

    def leave(self, timeout_s: float, *, commit: bool) -> Calls[None]:
        """Tell the listener that all that it was told of is given up, and leave, with ``commit`` and enable.auto.commit
        committing the positions. The group was left when this returns, and when it raises what the listener raised.
        Not to be called while :meth:`check_no_listener` raises."""
        positions: Offsets = {}
        try:
            yield from self._take_up(leaving=True)
            if owned := self._core.owned():
                yield from self._tell(Telling(self._listener.on_revoked, owned))
            if commit and self._core.auto_commit:
                positions = _stamped(self._core.positions())
        finally:
            try:
                yield Call(partial(self._sign_off, timeout_s, positions), waits=True)
            finally:
                yield Call(self._left, waits=True)

    def check_no_listener(self, what: str) -> None:
        """Raises InvalidRequest while the listener is called."""
        telling = self._telling()
        if telling is not None and getgeneratorstate(telling) == GEN_SUSPENDED:
            raise InvalidRequest(f"a rebalance listener cannot {what}: a poll or close waits for it to return")

    def _notice(self) -> None:
        self._notices += 1
        self._wake()

    def _sign_off(self, timeout_s: float, positions: Offsets) -> None:
        if self.member.leave(timeout_s, positions) and positions:
            self._came_through(positions)

    def _take_up(self, *, leaving: bool = False) -> Calls[None]:
        if self._noticed != (notices := self._notices):
            self._core.hear(*self.member.untold(self._core.heard))
            self._noticed = notices
        while (step := self._core.next_step()) is not None:
            if leaving and step.kind is Assigned:
                self._core.decline()
            else:
                yield from self._take(step)

    def _take(self, step: Step) -> Calls[None]:
        kind, partitions = step
        if kind is Assigned:
            log.info("group %s: assigned %s", self._group, _names(partitions))
            self._metadata.want({tp.topic for tp in partitions})
            yield from self._tell(Telling(self._listener.on_assigned, partitions))
            self._core.done()
        elif kind is Revoked:
            yield from self._revoke(partitions)
        else:
            yield from self._lose(partitions)

    def _look_for_topics(self) -> None:
        """Tell of topics that are not there: the group reads them as soon as they are."""
        view = self._metadata.view
        if not self._missing or view.version == self._seen_version:
            return
        self._seen_version = view.version
        self._missing -= view.topics.keys()
        new = {topic for topic in self._missing if topic in view.errors} - self._told_missing
        self._told_missing |= new
        for topic in sorted(new):
            log.warning(
                "group %s: topic %r cannot be read yet: %s; it will be as soon as it is there",
                self._group, topic, view.errors[topic],
            )  # fmt: skip

    def _lose(self, partitions: Sequence[TopicPartition]) -> Calls[None]:
        log.warning(
            "group %s: lost %s: what was read of them since the last commit, others may read again",
            self._group,
            _names(partitions),
        )
        telling = Telling(self._listener.on_lost, partitions)
        try:
            yield from self._tell(telling)
        finally:
            if telling.has_begun:
                self._forget(partitions)

    def _revoke(self, partitions: Sequence[TopicPartition]) -> Calls[None]:
        log.info("group %s: giving up %s", self._group, _names(partitions))
        positions: Offsets = {}
        telling = Telling(self._listener.on_revoked, partitions)
        try:
            yield from self._tell(telling)
            if self._core.auto_commit:
                positions = _stamped(self._core.positions(partitions))
        finally:
            if telling.has_begun:
                for tp in partitions:
                    self.member.quiet(tp, positions.get(tp))
                self._forget(partitions)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        self._core.done()
        for tp in partitions:
            for _, offsets in self._committing:
                offsets.pop(tp, None)

    def _tell(self, telling: Telling) -> Calls[None]:
        made = _made(Call(telling, waits=False))
        self._telling = ref(made)
        yield from made

    def _wanted(self, offsets: Offsets | None) -> dict[TopicPartition, CommittedOffset]:
        if offsets is None:
            return _stamped(self._core.positions())
        self._core.check(offsets)
        return _stamped(offsets)

    def _commit_async(self, offsets: dict[TopicPartition, CommittedOffset]) -> Future[None]:
        future = self.member.commit_async(offsets)
        self._committing.append((future, offsets))
        return future

    def _settle(self) -> None:
        """Note which commits have come through."""
        while self._committing and self._committing[0][0].done():
            future, offsets = self._committing.popleft()
            if not future.cancelled() and future.exception() is None:
                self._note(offsets)

    def _note(self, committed: Offsets) -> None:
        self._came_through(committed)
        self._core.committed(committed)

    def _tell_failure(self, future: Future[None]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            log.warning("group %s: positions not committed, which is tried again: %s", self._group, error)


class Telling:
    """A call of the listener's. Where an interrupt comes before it, the listener has heard nothing, and is told at the
    next poll."""

    def __init__(
        self, method: Callable[[Sequence[TopicPartition]], object], partitions: Sequence[TopicPartition]
    ) -> None:
        self.has_begun = False
        self._call = (method, partitions)

    def __call__(self) -> object:
        method, partitions = self._call
        self.has_begun = True
        return method(partitions)


def _made(call: Call) -> Calls[None]:
    yield call


def _stamped(offsets: Offsets) -> dict[TopicPartition, CommittedOffset]:
    now_ms = wall_ms()
    return {tp: committed._replace(committed_ms=now_ms) for tp, committed in offsets.items()}


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, partitions))
