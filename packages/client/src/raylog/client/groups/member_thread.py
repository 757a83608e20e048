"""The thread that keeps a consumer in a group of actors.

It owns the member's machine (``coordination.group``) and its side of the registries. It carries out one effect after
the other, hands in what came of it before anything else, and renews the lease in between. Everything else puts an item
on its queue: watches and sessions, the liveness connections, the user's thread (``groups.member``).

The lease is the session's, and ends before the session can (D9c): so a member that was cut off, or stopped by a signal,
hands nothing more out, though it has not heard yet that another owns what it had.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

from raylog.client.groups.change_queue import ChangeQueue
from raylog.client.groups.member_lease import LeaseRenewal
from raylog.client.groups.ports import Liveness, MemberPorts
from raylog.client.groups.requests import Commit, GoodBye, Item, PolledAgain, Quieted, Stop
from raylog.client.groups.tenures import Tenures
from raylog.client.latch import Latch
from raylog.coordination.groups.group import Member
from raylog.coordination.groups.registry import greeting_of
from raylog.coordination.host.loops import Loops
from raylog.coordination.membership.liveness import Peer
from raylog.coordination.metadata import group_events as core
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.coordination.metadata.group_model import Registered as Registration
from raylog.coordination.store.port import MetadataStore, NodeEvent, SessionEvent, SessionState
from raylog.protocol.errors import IllegalGeneration, RaylogError, UnknownMemberId, UnknownTopicOrPartition
from raylog.protocol.ids import Generation, GroupId, MemberId, MonotonicMs, TopicPartition
from raylog.protocol.logs import Logger
from raylog.protocol.texts import told

log = Logger(__name__)


class MemberThread:
    """See the module. What other threads may read is said to be so; they change nothing."""

    def __init__(
        self,
        store: MetadataStore,
        group: GroupId,
        machine: Member,
        registration: Registration,
        max_poll_interval_ms: int,
        woken: Callable[[], object],
        loops: Loops,
        ports: MemberPorts = MemberPorts(),  # noqa: B008 (it never changes)
    ) -> None:
        self._store = store
        self._group = group
        self._id = machine.id
        self._max_poll_interval_ms = max_poll_interval_ms
        self._machine_id = registration.machine
        self._is_static = registration.instance is not None
        self._queue: queue.SimpleQueue[Item] = loops.inbox()
        self._machine = machine
        self._ports, self._now_ms, self._wall_ms = ports, ports.now_ms, ports.wall_ms
        self._registry = ports.registry(store, group, machine.id, registration, self._queue, ports.wall_ms)
        self._noticed = self._has_stayed = False
        self._at_hand: Item | None = None
        self._good_bye: GoodBye | None = None
        self._lock = threading.Lock()
        self._ended = self._is_over = False
        self._loops = loops
        self._liveness: Liveness | None = None
        self._loop = loops.loop(f"group-{group}", self._round, mend=self._failed, finish=self._end)
        self.changes = ChangeQueue(woken)
        """For the user's thread."""
        self._tenures = Tenures(self.changes)
        self.lease = ports.lease()
        """Any thread may ask it."""
        self._renewal = LeaseRenewal(store, self.lease, ports.now_ms)
        self.polled_ms = self._now_ms()
        """When the user's thread was seen last; it writes that."""
        self.is_stuck = False
        """The user has not polled for too long: out of the group until it does. Any thread may read it."""
        self.failure: RaylogError | None = None
        """What ended the membership. Any thread may read it."""
        self.settled = Latch()
        """Registered for the first time, or ended."""

    # --- for other threads

    def start(self) -> None:
        self._loop.start()

    def join(self, timeout_s: float) -> bool:
        """False when it does not end in time; True at once when it was never started."""
        self._loop.join(timeout_s)
        return not self._loop.is_alive

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What may be handed out, while the lease holds."""
        return frozenset(self._tenures.working)

    def owns(self, tp: TopicPartition) -> bool:
        """Whether it may be handed out, while the lease holds."""
        return tp in self._tenures.working

    @property
    def generation(self) -> Generation:
        """Of the assignment that is followed."""
        return self._machine.generation

    @property
    def has_left(self) -> bool:
        """Nothing of it is left in the registries, as far as is known; or all that a static member leaves there."""
        return self._has_stayed or self._machine.has_left

    def describe(self) -> dict[str, object]:
        """What a person who looks for a fault wants to know."""
        return {
            "group": self._group,
            "member_id": self._id,
            "elected": self._registry.elected,
            "generation": self.generation,
            "owned": sorted(self.owned),
            "tenures": self._tenures.count,
            "registered": bool(self._registry.session_id),
            "lease_held": self.lease.held(self._now_ms()),
            "stuck": self.is_stuck,
        }

    def post(self, item: Item) -> bool:
        """False when nobody takes it any more."""
        with self._lock:
            if not self._ended:
                self._queue.put(item)
            return not self._ended

    def _gone(self, peer: Peer, is_first: bool) -> None:
        """On the thread of the liveness connections."""
        member = peer.key
        assert isinstance(member, str)
        if is_first:
            log.info("group %s: the process of member %s seems gone", self._group, member)
        self.post(core.Died(MemberId(member)))

    # --- the thread

    def _round(self) -> bool:
        """One turn; False when the membership is over. An error that is foreseen ends it, too."""
        try:
            if self._liveness is None:
                self._liveness = self._ports.liveness(self._gone, self._loops)
                self._store.watch_session(self._queue)
                self._do(core.Started())
            else:
                self._turn()
        except RaylogError as error:
            self._fail(error)
        self._is_over = self._ended or self.failure is not None or bool(self._good_bye and self._machine.has_left)
        return not self._is_over

    def _failed(self, error: Exception) -> None:
        """A defect: nobody knows what the machine has left half done, so the membership ends, and its user hears it."""
        self._loop.stop()
        self._fail(RaylogError(f"member {self._id} of group {self._group} has failed: {told(error)}"))

    def _fail(self, error: RaylogError) -> None:
        """Hold up nobody who should have what was ours: sign off, or else end the session."""
        self.failure = error
        self.lease.revoke()
        try:
            signed_off = self._registry.carry_out(core.Deregister()) == core.Deregistered()
        except Exception:
            log.exception("group %s: member %s could not sign off", self._group, self._id)
            signed_off = False
        if not signed_off:
            self._store.close()  # what has failed may have been the machine: nobody keeps the session alive for nothing

    def _end(self) -> None:
        self.lease.revoke()
        if not self._is_over and self.failure is None:
            self._fail(RaylogError(f"the thread of member {self._id} of group {self._group} has ended: see the log"))
        with self._lock:
            self._ended = True
        item = self._at_hand
        while item is not None or not self._queue.empty():
            item = self._queue.get() if item is None else item
            if isinstance(item, Commit) and not item.done.done():
                item.done.set_exception(self.failure or self.not_a_member())
            item = None
        self.settled.set()
        if self._liveness is not None:
            self._liveness.stop()
        self._tenures.lose_all()

    def _turn(self) -> None:
        """Take one thing in, and do what is due. Of many watches that tell something, one look follows."""
        try:
            item: Item | None = self._queue.get(timeout=0 if self._noticed else self._wait_s())
        except queue.Empty:
            item = None
        self._at_hand = item
        if isinstance(item, NodeEvent):
            self._registry.noticed(item)
            self._noticed = True
            return
        if self._noticed:
            self._noticed = False
            self._do(core.Noticed())
        if item is not None:
            self._take(item)
        self._at_hand = None
        self._do_what_is_due()

    def _take(self, item: SessionEvent | core.Died | Quieted | Commit | GoodBye | PolledAgain | Stop) -> None:
        match item:
            case SessionEvent():
                self._session_changed(item)
            case core.Died(member):
                self._registry.seems_dead(member)
                self._do(item)
                self._noticed = True  # who watches him reads of him anew
            case Quieted(tp, position, tenure):
                if tp in self._tenures.revoked and self._tenures.get(tp) == tenure:  # else it was lost meanwhile
                    self._tenures.end(tp)
                    self._do(core.Quiet(tp, self._stamped(position)))
            case Commit():
                self._commit(item)
            case GoodBye():
                self._good_bye = item
                if self._is_static and self._registry.session_id:
                    self._stay()
                else:
                    self._leave()
            case PolledAgain():
                if self.is_stuck and self._good_bye is None:
                    self.is_stuck = False
                    self._do(core.Started())
            case Stop():
                with self._lock:
                    self._ended = True

    def _do(self, event: core.Event) -> None:
        """What follows from ``event``, to the end."""
        todo = deque(self._machine.on(event, self._now_ms()))
        while todo and not self._ended:
            result = self._carry_out(todo.popleft())
            self._renewal.if_due(self._registry.session_id)
            if result is not None:
                todo.extendleft(reversed(self._machine.on(result, self._now_ms())))

    def _carry_out(self, effect: core.Effect) -> core.Event | None:
        match effect:
            case core.Assign(tp):
                self._tenures.assign(tp, self._registry.claims.get(tp))
                return None
            case core.Revoke(tp):
                return self._revoke(tp) if self._tenures.get(tp) else None  # lost while another was given up
            case core.Lose(tp):
                self._tenures.lose(tp)
                return None
            case _:
                result = self._registry.carry_out(effect)
        if isinstance(result, core.Registered):
            self._renewal.now(self._registry.session_id)  # before anything is claimed
            self.settled.set()
        elif isinstance(result, core.Looked) and self._liveness is not None:
            self._liveness.watch(
                Peer(member, other.host, other.port, greeting_of(member), other.machine == self._machine_id != "")
                for member, other in self._registry.others.items()
                if other.host
            )
        return result

    def _revoke(self, tp: TopicPartition) -> core.Event | None:
        asks_user = self._good_bye is None and not self.is_stuck
        self._tenures.revoke(tp, is_told=asks_user)
        return None if asks_user else self._quiet_by_itself(tp)

    def _quiet_by_itself(self, tp: TopicPartition) -> core.Event:
        """Nobody will say any more that he is done with what is revoked: he has left, or is stuck."""
        position = self._last_position(tp)
        if self._good_bye is None:
            self._tenures.lose(tp)
        else:
            self._tenures.end(tp)
        return core.Quiet(tp, position)

    def _last_position(self, tp: TopicPartition) -> CommittedOffset | None:
        """Where the user who has left has read it up to."""
        good_bye = self._good_bye
        if good_bye is None or good_bye.tenures.get(tp) != self._tenures.get(tp):
            return None
        return self._stamped(good_bye.positions.get(tp))

    def _give_up_what_is_revoked(self) -> None:
        while self._tenures.revoked:  # giving one up may lose others
            self._do(self._quiet_by_itself(min(self._tenures.revoked)))

    def _leave(self) -> None:
        self._give_up_what_is_revoked()
        self._do(core.Leave())

    def _stay(self) -> None:
        """Close a static member: it leaves its registration and its claims to the end of its session (KIP-345)."""
        self._give_up_what_is_revoked()
        found = {tp: self._last_position(tp) for tp in sorted(self._tenures.working)}
        self._has_stayed = self._commit_last({tp: position for tp, position in found.items() if position is not None})
        with self._lock:
            self._ended = True

    def _commit_last(self, positions: dict[TopicPartition, CommittedOffset]) -> bool:
        """Commit what there is to commit; False where nobody knows whether it is."""
        try:
            while positions:
                try:
                    self._registry.claims.commit(positions)
                    return True
                except (IllegalGeneration, UnknownTopicOrPartition):  # what is lost is forgotten: without it, again
                    positions = {tp: at for tp, at in positions.items() if self._registry.claims.get(tp) is not None}
        except RaylogError as error:
            log.warning("group %s: member %s closes: %s", self._group, self._id, error)
        return not positions

    def _session_changed(self, event: SessionEvent) -> None:
        registered = self._registry.session_id
        if event.state is SessionState.LOST and registered in (0, event.session_id):
            self.lease.revoke()
            self._registry.session_lost()
            log.warning("group %s: the session of member %s has ended", self._group, self._id)
            self._do(core.SessionLost())
        elif event.state is SessionState.CONNECTED:
            self._registry.watches_lost()
            if registered == event.session_id:
                self._do(core.Noticed())
            elif not self.is_stuck and self._good_bye is None:
                self._do(core.Started())

    def _commit(self, commit: Commit) -> None:
        offsets, done = commit.offsets, commit.done
        if not done.set_running_or_notify_cancel():
            return
        try:
            if not self._registry.session_id:
                raise self.not_a_member()
            if lost := sorted(tp for tp in offsets if self._tenures.get(tp) != commit.tenures.get(tp)):
                raise IllegalGeneration(
                    f"{', '.join(map(str, lost))}: member {self._id} of group {self._group} has not, or not any more, "
                    "what it was read under: nothing was committed, and its owner reads it again"
                )
            self._registry.claims.commit({tp: self._stamped(offset) or offset for tp, offset in offsets.items()})
        except Exception as error:  # noqa: BLE001 - the caller's to deal with: the member goes on
            known = isinstance(error, RaylogError)
            told_error = error if known else RaylogError(f"group {self._group}: commit met {told(error)}")
            if (fenced := self._registry.fencing()) is not None:
                self.lease.revoke()  # before the user hears it: it hands nothing out any more
            done.set_exception(fenced or told_error)
            for tp in sorted(self._tenures.working & offsets.keys()):
                if self._registry.claims.get(tp) is None:
                    self._do(core.ClaimLost(tp))
        else:
            done.set_result(None)

    def not_a_member(self) -> UnknownMemberId:
        why = "its session ended"
        if self.is_stuck:
            why = f"it did not poll for max.poll.interval.ms={self._max_poll_interval_ms}"
        elif self._ended or self._good_bye is not None:
            why = "it has left"
        return UnknownMemberId(
            f"member {self._id} is not in group {self._group} any more: {why}; nothing can be committed, and "
            "what was read since the last commit is read again by who owns the partitions now"
        )

    def _stamped(self, offset: CommittedOffset | None) -> CommittedOffset | None:
        return offset if offset is None or offset.committed_ms >= 0 else offset._replace(committed_ms=self._wall_ms())

    # --- time

    def _wait_s(self) -> float:
        due = [self._renewal.due_ms]
        if (tick := self._machine.next_tick_ms()) is not None:
            due.append(tick)
        if not self.is_stuck and self._good_bye is None:
            due.append(MonotonicMs(self.polled_ms + self._max_poll_interval_ms + 1))
        return max(0, min(due) - self._now_ms()) / 1_000

    def _do_what_is_due(self) -> None:
        self._renewal.if_due(self._registry.session_id)
        for tp in self._registry.of_deleted_topics():
            self._do(core.ClaimLost(tp))
        now = self._now_ms()
        if (tick := self._machine.next_tick_ms()) is not None and tick <= now:
            self._do(core.Tick())
        if not self.is_stuck and self._good_bye is None and now - self.polled_ms > self._max_poll_interval_ms:
            log.warning(
                "group %s: member %s did not poll for max.poll.interval.ms=%d: it is out until it polls",
                self._group, self._id, self._max_poll_interval_ms,
            )  # fmt: skip
            self.is_stuck = True
            self._leave()
