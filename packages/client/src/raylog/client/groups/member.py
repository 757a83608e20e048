"""A consumer's membership in a group of actors, for the user's thread.

It is told what is assigned, revoked and lost (:meth:`GroupMember.changes`), and asks before it hands records out
(:meth:`GroupMember.may_deliver`). A thread of its own keeps the membership (``groups.member_thread``).

Members notice each other's death by connections (``coordination.liveness``): the elected one watches all,
each other one the member before it (``groups.view``).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from uuid import uuid4

from raylog.client.groups.changes import Change
from raylog.client.groups.member_thread import MemberThread
from raylog.client.groups.requests import Commit, GoodBye, PolledAgain, Quieted, Stop
from raylog.client.latch import Latch
from raylog.coordination.groups.assignors import Assignor
from raylog.coordination.groups.group import Member
from raylog.coordination.groups.registry import greeting_of
from raylog.coordination.host.clocks import monotonic_ms, wall_ms
from raylog.coordination.host.loops import Loops
from raylog.coordination.membership.liveness import LivenessListener, machine_id
from raylog.coordination.metadata.group_model import CommittedOffset, Registered
from raylog.coordination.metadata.topic_patterns import pattern_text
from raylog.coordination.store.port import MetadataStore
from raylog.protocol.errors import RequestTimedOut
from raylog.protocol.ids import Generation, GroupId, InstanceId, MemberId, TopicName, TopicPartition

__all__ = ["GroupMember"]


class GroupMember:
    """One member of one group; see the module. Its methods may be called from any thread, and answer at once unless
    they say otherwise."""

    def __init__(
        self,
        store: MetadataStore,
        group: GroupId,
        topics: frozenset[TopicName] | re.Pattern[str],
        *,
        client_id: str = "raylog",
        assignor: Assignor = Assignor.STICKY,
        max_poll_interval_ms: int = 300_000,
        host: str = "",
        instance: InstanceId | None = None,
        woken: Callable[[], object] = lambda: None,
    ) -> None:
        """``store`` was started, and is closed by the caller after :meth:`leave`: its session is the member's.

        ``topics`` may name some that do not exist yet; a pattern is matched with whole names. ``host``: this machine's
        address as the other members reach it, where it listens so that they notice its death (``address_towards``); "":
        they have to wait for the end of its session. So they do in any case for a static member (KIP-345), one with an
        ``instance``. ``woken`` is called, on another thread, when there are changes: it must neither block nor raise.
        Raises OSError when it cannot listen at ``host``.
        """
        self._group = group
        self.member_id = MemberId(f"{_named(client_id, instance)}{wall_ms()}-{uuid4().hex[:8]}")
        loops = Loops()
        self._listener = None
        if host and instance is None:
            self._listener = LivenessListener(host, greeting_of(self.member_id), loops)
        where = (host, self._listener.port) if self._listener else ("", -1)
        self._thread = MemberThread(
            store,
            group,
            Member(self.member_id, assignor, random.random),
            Registered(frozenset(), pattern_text(topics), *where, machine_id(), instance)
            if isinstance(topics, re.Pattern)
            else Registered(topics, None, *where, machine_id(), instance),
            max_poll_interval_ms,
            woken,
            loops,
        )

    def start(self, timeout_s: float = 60.0) -> None:
        """Register; waits for it.

        Raises RequestTimedOut, InconsistentGroupProtocol when the group is one of Kafka's clients, InvalidGroupId.
        After an error, nothing is left to end.
        """
        self._thread.start()
        is_member = False
        try:
            is_member = self._thread.settled.wait(timeout_s) and self._thread.failure is None
        finally:  # also when the user interrupts it
            if not is_member:
                self.leave(0)
        if is_member:
            return
        if self._thread.failure is not None:
            raise self._thread.failure
        raise RequestTimedOut(
            f"ZooKeeper took no registration for group {self._group} within {timeout_s:g} s: check that it "
            "runs and can be reached from here"
        )

    def changes(self) -> Sequence[Change]:
        """What was assigned, revoked or lost, in order, each once. After Revoked, finish what was handed out and
        call :meth:`quiet`; after Lost, nothing can be committed. Raises what ended the membership, when all is told.
        """
        found = self._thread.changes.take()
        self._raise_failure(found)
        return found

    def untold(self, heard: int) -> tuple[int, Sequence[Change]]:
        """As :meth:`changes`, for a thread that may be interrupted: see ChangeQueue."""
        last, found = self._thread.changes.untold(heard)
        self._raise_failure(found)
        return last, found

    def _raise_failure(self, found: Sequence[Change]) -> None:
        if not found and self._thread.failure is not None:
            raise self._thread.failure

    def wait(self, timeout_s: float) -> bool:
        """Wait until :meth:`changes` has something; False when it has not by then."""
        return self._thread.changes.wait(timeout_s)

    def quiet(self, tp: TopicPartition, position: CommittedOffset | None) -> None:
        """No record of what was revoked will be handed out any more; ``position`` is committed as it is given up."""
        tenure = self._thread.changes.quiet(tp)
        if tenure is not None:  # else it was lost meanwhile
            self._thread.post(Quieted(tp, position, tenure))

    def may_deliver(self, tp: TopicPartition) -> bool:
        """Whether records of it may be handed out now: it is owned, by a claim of this session, and the lease holds."""
        return self._thread.owns(tp) and self._thread.lease.held(monotonic_ms())

    def commit_async(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> Future[None]:
        """As :meth:`commit`, in the order of the calls; the future has the error."""
        done: Future[None] = Future()
        self._commit(offsets, done)
        return done

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commit what was read of partitions that are owned or revoked: all or none, of 500 partitions.

        Waits for the store. Raises UnknownMemberId when it is not in the group any more (its session ended, or it did
        not poll for max.poll.interval.ms), IllegalGeneration for a partition that it does not own, or lost since
        :meth:`changes` told that it began, RequestTimedOut when the store does not answer: then it may have been
        committed.
        """
        known = Latch()
        done: Future[None] = Future()
        done.add_done_callback(lambda _: known.set())
        self._commit(offsets, done)
        known.wait()
        done.result()  # behind the wait: its own, interrupted, would leave it locked for the member's thread

    def _commit(self, offsets: Mapping[TopicPartition, CommittedOffset], done: Future[None]) -> None:
        if not self._thread.post(Commit(dict(offsets), self._thread.changes.tenures(offsets), done)):
            done.set_exception(self._thread.failure or self._thread.not_a_member())

    def polled(self) -> None:
        """The user's thread is alive: max.poll.interval.ms begins anew; a member that was out for that joins again.

        Raises what ended the membership, if something did.
        """
        self._thread.polled_ms = monotonic_ms()
        if self._thread.failure is not None:
            raise self._thread.failure
        if self._thread.is_stuck:
            self._thread.post(PolledAgain())

    def leave(self, timeout_s: float, positions: Mapping[TopicPartition, CommittedOffset] | None = None) -> bool:
        """Give everything up, committing ``positions``, and sign off; waits for it. A static member commits, and keeps
        what it has for the next one of its instance, until its session ends: abandon the store then.

        Nothing may be handed out from now on. False when it was not done in time: the others learn it from the end of
        the session. May be called twice.
        """
        positions = dict(positions or {})
        self._thread.post(GoodBye(positions, self._thread.changes.tenures(positions)))
        in_time = self._thread.join(timeout_s)
        self._thread.post(Stop())
        if self._listener is not None:  # last: others take it for our death
            self._listener.stop()
        return in_time and self._thread.has_left

    @property
    def generation(self) -> Generation:
        """Of the assignment that it follows; -1 before the first."""
        return self._thread.generation

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What it may hand out, while the lease holds."""
        return self._thread.owned

    def describe(self) -> Mapping[str, object]:
        """What a person who looks for a fault wants to know."""
        return self._thread.describe()


def _named(client_id: str, instance: InstanceId | None) -> str:
    """What the id of a member begins with.

    Of the members of one client.id the oldest comes first, and is the elected one: so that rarely changes. Static
    members come behind those, for one that is away can't do the work of the elected one. They are in the order of their
    instances, so that ranges stay as they are: no instance has a character that comes before this "#".
    """
    return f"{client_id}-" if instance is None else f"~{instance}#"
