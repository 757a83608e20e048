"""The groups that this broker coordinates at the moment: claimed when they are first asked for or when their former
coordinator is gone (see keeper), let go of when it may not act for them any more or another broker is to.

Each group has one lock, under which its machine is asked, its state is stored, and replies go out. Whether this broker
may act (its lease) is checked once the lock is had, and again before anything is answered. A broker that may not, or
that registered anew, lets go of all groups, and goes on from what is stored when it is asked again: their members'
sessions begin anew, and they notice nothing but a pause.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from raylog.broker.config.groups import GroupRules
from raylog.broker.events import EventLog
from raylog.broker.groups.classic.described import ListedGroup
from raylog.broker.groups.classic.group import ClassicGroup, GroupState
from raylog.broker.groups.classic.messages import Outcome, Reply, Token
from raylog.broker.groups.holding.due import DueGroups
from raylog.broker.groups.holding.held import (
    Basis,
    Claimant,
    HeldGroup,
    check_coordinates,
    claim_group,
    is_later,
    read_claim,
)
from raylog.broker.groups.holding.table import Entry, GroupBusy, GroupTable
from raylog.coordination.groups.kinds import check_group_id
from raylog.coordination.host.loops import Loops
from raylog.coordination.metadata.model import ClusterState
from raylog.coordination.store.port import (
    BadVersion,
    MetadataStore,
    NoChildrenForEphemerals,
    StoreError,
    StoreUnauthorized,
)
from raylog.coordination.store.unreadable import for_good
from raylog.protocol.errors import CoordinatorNotAvailable, NotCoordinator, RaylogError, UnknownMemberId
from raylog.protocol.ids import BrokerId, GroupId, MonotonicMs

__all__ = ["GroupHolder", "store_answers"]

logger = EventLog(__name__)

BEAT_MS = 200
"""How often it looks whether it still may act."""
LOCK_WAIT_S = 0.05
"""For so long those who see to all groups wait for who is in one; then other groups are next."""
_ALL = GroupId("")
"""In the place of a group, which has a name: look whether it still may act."""


class GroupHolder:
    """Of one broker, from its start to its stop. Any thread may call."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        claimant: Callable[[], Claimant],
        cluster: Callable[[], ClusterState],
        may_act: Callable[[], bool],
        rules: GroupRules,
        now_ms: Callable[[], MonotonicMs],
        loops: Loops,
    ) -> None:
        """``claimant``: this broker in its incarnation now; ``may_act``: whether its lease is held."""
        self._store = store
        self.claimant = claimant
        self._cluster = cluster
        self._may_act = may_act
        self._rules = rules
        self._now_ms = now_ms
        self._ticker = DueGroups("group-ticker", self._pass_time, now_ms, loops)
        self._table = GroupTable(freed=lambda group: self._ticker.schedule(group, now_ms()))
        self._is_stopping = False

    def start(self) -> None:
        self._ticker.schedule(_ALL, self._now_ms())
        self._ticker.start()

    def stop(self) -> None:
        """Let go of all groups: whoever waits is told to look for another coordinator."""
        self._is_stopping = True
        self._ticker.stop()
        self._let_go_of_all(NotCoordinator(f"broker {self.claimant().broker} stops"))

    @property
    def held_count(self) -> int:
        """How many groups are held at the moment."""
        return self._table.held_count

    @property
    def may_act(self) -> bool:
        return not self._is_stopping and self._may_act()

    @property
    def next_tick_ms(self) -> MonotonicMs | None:
        """When the ticker has something to do next."""
        return self._ticker.next_ms

    def check_may_act(self) -> None:
        """Raises NotCoordinator."""
        if not self.may_act:
            raise NotCoordinator(f"broker {self.claimant().broker} may not act for groups: it stops, or has no lease")

    @contextmanager
    def enter(self, group: GroupId, *, wait: bool = True) -> Iterator[Entry]:
        """The group's entry, for one thread at a time. Without ``wait`` raises GroupBusy where it is not free soon.

        Raises InvalidGroupId, NotCoordinator while this broker may not act, and CoordinatorNotAvailable for what the
        store does not answer inside.
        """
        check_group_id(group)
        with self._enter(group, wait=wait) as entry, store_answers():
            self.check_may_act()
            if entry.held is not None and entry.held.claimant != self.claimant():
                self.let_go(entry, NotCoordinator(f"broker {self.claimant().broker} registered anew"))
            with self._guarded(entry, group):
                yield entry

    @contextmanager
    def _enter(self, group: GroupId, *, wait: bool) -> Iterator[Entry]:
        if wait:
            with self._table.enter(group) as entry:
                yield entry
            return
        with self._table.try_enter(group, LOCK_WAIT_S) as free:
            if free is None:
                raise GroupBusy(f"group {group} is busy: a request that came before is not answered by the store")
            yield free

    @contextmanager
    def _guarded(self, entry: Entry, group: GroupId) -> Iterator[None]:
        """A defect may leave the machine in the midst of a change: the group goes on from what is stored."""
        try:
            yield
        except RaylogError:
            raise
        except Exception as defect:
            self.let_go(entry, RaylogError(f"group {group} met a defect of its coordinator, see its log: {defect}"))
            raise

    def hold(self, entry: Entry, group: GroupId, *, make: bool) -> HeldGroup | None:
        """The group, claimed if it was not yet: see claim_group, also for what it raises and when it answers None."""
        if make and entry.held is not None and entry.held.was_taken():
            self.let_go(entry, NotCoordinator(f"group {group} was one of actors meanwhile"))
        if entry.held is None:
            me, cluster, now_ms = self.claimant(), self._cluster(), self._now_ms()
            try:
                entry.held = claim_group(self._store, group, me, cluster, self._rules, now_ms, make=make)
            except CoordinatorNotAvailable:
                entry.claimed_as = entry.claimed_as or me  # the claim may be stored; move finds out where it is not
                raise
            entry.idle = None
            if entry.held is not None:
                if entry.claimed_as != me or not entry.held.is_idle:  # idle ones are put out of memory again and again
                    _tell_claimed(entry.held.machine)
                entry.claimed_as = me
                self._ticker.schedule(group, entry.held.machine.next_tick_ms())
        return entry.held

    def hold_known(self, entry: Entry, group: GroupId) -> HeldGroup:
        """:meth:`hold` for a request of a member. Raises UnknownMemberId when it can be none."""
        held = self.hold(entry, group, make=False)
        if held is None:
            raise UnknownMemberId(f"group {group} has no members that a broker coordinates: join it")
        return held

    def check_coordinates(self, entry: Entry, group: GroupId) -> None:
        """Raises NotCoordinator unless this broker coordinates the group or is to."""
        if entry.held is not None:
            return
        claim = read_claim(self._store, group).claim
        if is_later(claim, self.claimant()) and self.hold(entry, group, make=False) is not None:
            return
        check_coordinates(group, claim, self.claimant(), self._cluster())

    def settle(self, entry: Entry, outcome: Outcome) -> None:
        """Store what has to be, then answer, and see that the group's time passes."""
        held = entry.held
        assert held is not None
        replies = held.settle(outcome)
        if held.lost is None and not self._may_act():
            lapsed = self._without_lease()
            replies = (*((token, lapsed) for token, _ in replies), *held.lose(lapsed))
        if held.lost is not None:
            entry.held, entry.was_let_go = None, True
            logger.warning("group let go of", group=held.machine.id, reason=held.lost)
        _answer(replies)
        if entry.held is not None:
            self._ticker.schedule(held.machine.id, held.machine.next_tick_ms())

    def let_go(self, entry: Entry, error: RaylogError) -> None:
        """Coordinate the group no more; who waits hears ``error``."""
        held, entry.held = entry.held, None
        if held is not None:
            entry.was_let_go = True
            _answer(held.lose(error))
            logger.info("group let go of", group=held.machine.id, reason=error)

    def drop(self, entry: Entry) -> None:
        """The group was deleted."""
        entry.held = entry.idle = entry.claimed_as = None

    def known(self) -> dict[GroupId, tuple[Basis, ListedGroup]]:
        """The groups that are held, or claimed and without members, with what must still be so. Nobody waits for who is
        in them, so they may change meanwhile.
        """
        known = {
            group: (idle.basis, ListedGroup(group, idle.protocol_type, GroupState.EMPTY))
            for group, idle in self._table.all_idle().items()
        }
        for group, held in self._table.all_held().items():
            known[group] = held.basis, ListedGroup(group, held.machine.protocol_type, held.machine.state)
        me = self.claimant()
        return {group: each for group, each in known.items() if each[0].claimant == me}

    def forget_if_idle(self, group: GroupId) -> None:
        """What is remembered of a group without members is not so any more."""
        with self._table.try_enter(group, 0) as entry:
            if entry is not None:
                entry.idle = None

    # --- what the keeper asks ---

    def held_groups(self) -> Collection[GroupId]:
        return tuple(self._table.all_held())

    def claimed_groups(self) -> Sequence[GroupId]:
        """Those that this broker has claimed and not given away, be they held or not."""
        return self._table.claimed()

    def let_go_groups(self) -> Sequence[GroupId]:
        """Those that were held, perhaps with members, and not adopted since."""
        return self._table.let_go()

    def adopt(self, group: GroupId) -> bool:
        """Hold the group, if it is to be coordinated here, so that its time passes.

        False when none has to pass: it has no members, or is not of Kafka clients. Raises as :meth:`hold` does;
        GroupBusy.
        """
        with self.enter(group, wait=False) as entry:
            try:
                held = self.hold(entry, group, make=False)
            except NotCoordinator:
                entry.was_let_go = False
                raise
            entry.was_let_go = False
            if held is not None and held.is_idle:
                entry.put_out(held)
            return entry.held is not None

    def forget_idle(self) -> None:
        """Put groups without members out of memory; they stay in the store, and claimed."""
        for group in self._table.all_held():
            with self._table.try_enter(group, 0) as entry:
                if entry is not None and entry.held is not None and entry.held.is_idle:
                    entry.put_out(entry.held)

    def move(self, group: GroupId, to: BrokerId) -> None:
        """Leave the group to ``to``, which is to claim it; its members look for it then. Does nothing while a rebalance
        is under way, which would begin anew. Raises as :meth:`hold` does; NotCoordinator when it is elsewhere already;
        GroupBusy.
        """
        with self.enter(group, wait=False) as entry:
            try:
                held = self.hold(entry, group, make=False)
                if held is None or not held.is_at_rest:
                    return
                moved = NotCoordinator(f"group {group} moves to broker {to}: ask for its coordinator anew")
                try:
                    held.release()
                finally:
                    self.let_go(entry, moved)  # also where nobody knows whether it was released
                entry.claimed_as = None
            except NotCoordinator:
                entry.idle = entry.claimed_as = None
                raise
            except BadVersion:
                entry.idle = None  # actors took the group, perhaps, under this broker's claim
                raise

    def lost(self, group: GroupId, *, wait: bool = True) -> None:
        """The store refused what the group had allowed, or shows it: somebody else has claimed it. Without ``wait``
        raises GroupBusy where the group is not free soon.
        """
        with self._enter(group, wait=wait) as entry:
            self.let_go(entry, NotCoordinator(f"group {group} was claimed by another broker"))

    def _let_go_of_all(self, error: RaylogError) -> None:
        for group in self._table.all_held():
            with self._table.enter(group) as entry:
                self.let_go(entry, error)

    def _without_lease(self) -> NotCoordinator:
        return NotCoordinator(f"broker {self.claimant().broker} lost touch with the metadata store")

    # --- the ticker's threads ---

    def _pass_time(self, group: GroupId) -> None:
        if group == _ALL:
            self._beat()
            return
        with self._table.try_enter(group, LOCK_WAIT_S) as entry:
            if entry is not None:
                self._tick(entry, group)

    def _tick(self, entry: Entry, group: GroupId) -> None:
        with self._guarded(entry, group):
            if not self._may_act():  # a lease that is back at once would not bring this tick back
                self.let_go(entry, self._without_lease())
            elif entry.held is not None:
                self.settle(entry, entry.held.machine.tick(self._now_ms()))

    def _beat(self) -> None:
        """Where this broker may not act any more, nobody waits for it."""
        now_ms = self._now_ms()
        if not self._may_act():
            for group in self._table.all_held():
                self._ticker.schedule(group, now_ms)
        self._ticker.schedule(_ALL, MonotonicMs(now_ms + BEAT_MS))


def _tell_claimed(machine: ClassicGroup) -> None:
    members = len(machine.members)
    logger.info("group claimed", group=machine.id, generation=machine.generation, members=members)


def _answer(replies: Sequence[tuple[Token, Reply]]) -> None:
    """Tokens are the futures that requests wait for."""
    for token, reply in replies:
        assert isinstance(token, Future)
        if isinstance(reply, RaylogError):
            token.set_exception(reply)
        else:
            token.set_result(reply)


@contextmanager
def store_answers() -> Iterator[None]:
    """Turns what the store raises into CoordinatorNotAvailable; CorruptMetadata where it refuses a node for good."""
    try:
        yield
    except (StoreUnauthorized, NoChildrenForEphemerals) as error:
        raise for_good(error) from error
    except StoreError as error:
        raise CoordinatorNotAvailable(f"the metadata store does not answer, or not as expected: {error}") from error
