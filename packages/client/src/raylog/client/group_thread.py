"""The thread that keeps a consumer in a group of actors.

It owns the member's machine (``coordination.group``) and its side of the registries. It carries out one effect after
the other, hands in what came of it before anything else, and renews the lease in between. Everything else puts an item
on its queue: watches and sessions, the liveness connections, the user's thread (``group_member``).

The lease is the session's, and ends before the session can (D9c): so a member that was cut off, or stopped by a signal,
hands nothing more out, though it has not heard yet that another owns what it had.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

from raylog.client.change_queue import ChangeQueue
from raylog.client.group_changes import Began, Ceased, Dropped
from raylog.client.group_ports import Liveness, MemberPorts
from raylog.client.group_requests import Commit, GoodBye, Item, PolledAgain, Quieted, Stop
from raylog.coordination import group_events as core
from raylog.coordination.group import Member
from raylog.coordination.group_model import CommittedOffset
from raylog.coordination.group_model import Registered as Registration
from raylog.coordination.group_registry import greeting_of
from raylog.coordination.liveness import Peer
from raylog.coordination.loops import Loops
from raylog.coordination.store import MetadataStore, NodeEvent, SessionEvent, SessionState, StoreError
from raylog.protocol.errors import IllegalGeneration, RaylogError, UnknownMemberId
from raylog.protocol.ids import Generation, GroupId, MemberId, MonotonicMs, TopicPartition
from raylog.protocol.logs import Logger
from raylog.protocol.texts import told

log = Logger(__name__)

RENEWALS_PER_SESSION = 10


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
        self._queue: queue.SimpleQueue[Item] = loops.inbox()
        self._machine = machine
        self._ports, self._now_ms, self._wall_ms = ports, ports.now_ms, ports.wall_ms
        self._registry = ports.registry(store, group, machine.id, registration, self._queue, ports.wall_ms)
        self._renew_at_ms = MonotonicMs(0)
        self._working: set[TopicPartition] = set()
        """What may be handed out, under the lease."""
        self._ceasing: set[TopicPartition] = set()
        """What the user has to be done with."""
        self._tenures: dict[TopicPartition, int] = {}
        """Of all these: what the user says about another tenure of the same partition does not count."""
        self._tenure = 0
        self._noticed = False
        self._at_hand: Item | None = None
        self._good_bye: GoodBye | None = None
        self._lock = threading.Lock()
        self._ended = self._is_over = False
        self._loops = loops
        self._liveness: Liveness | None = None
        self._loop = loops.loop(f"group-{group}", self._round, mend=self._failed, finish=self._end)
        self.changes = ChangeQueue(woken)
        """For the user's thread."""
        self.lease = ports.lease()
        """Any thread may ask it."""
        self.polled_ms = self._now_ms()
        """When the user's thread was seen last; it writes that."""
        self.is_stuck = False
        """The user has not polled for too long: out of the group until it does. Any thread may read it."""
        self.failure: RaylogError | None = None
        """What ended the membership. Any thread may read it."""
        self.settled = threading.Event()
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
        return frozenset(self._working)

    def owns(self, tp: TopicPartition) -> bool:
        """Whether it may be handed out, while the lease holds."""
        return tp in self._working

    @property
    def generation(self) -> Generation:
        """Of the assignment that is followed."""
        return self._machine.generation

    @property
    def has_left(self) -> bool:  # nothing of it is left in the registries, as far as is known
        return self._machine.has_left

    def describe(self) -> dict[str, object]:
        """What a person who looks for a fault wants to know."""
        return {
            "group": self._group,
            "member_id": self._id,
            "elected": self._registry.elected,
            "generation": self.generation,
            "owned": sorted(self.owned),
            "tenures": self._tenure,
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
            item = item or self._queue.get()
            if isinstance(item, Commit) and not item.done.done():
                item.done.set_exception(self.failure or self.not_a_member())
            item = None
        self.settled.set()
        if self._liveness is not None:
            self._liveness.stop()
        for tp in tuple(self._tenures):
            self._drop(tp)

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
                if tp in self._ceasing and self._tenures[tp] == tenure:  # else it was lost meanwhile
                    self._quiet(tp, position)
            case Commit():
                self._commit(item)
            case GoodBye():
                self._good_bye = item
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
            self._renew_lease_if_due()
            if result is not None:
                todo.extendleft(reversed(self._machine.on(result, self._now_ms())))

    def _carry_out(self, effect: core.Effect) -> core.Event | None:
        match effect:
            case core.Begin(tp):
                claim = self._registry.claims.get(tp)
                self._tenure += 1
                self._tenures[tp] = self._tenure
                self._working.add(tp)
                began = Began(tp, None) if claim is None else Began(tp, claim.committed, claim.topic_id)
                self.changes.tell(began, self._tenure)
                return None
            case core.Cease(tp):
                return self._cease(tp) if tp in self._tenures else None  # dropped while another was given up
            case core.Drop(tp):
                self._drop(tp)
                return None
            case _:
                result = self._registry.carry_out(effect)
        if isinstance(result, core.Registered):
            self._renew_lease()  # before anything is claimed
            self.settled.set()
        elif isinstance(result, core.Looked) and self._liveness is not None:
            self._liveness.watch(
                Peer(member, other.host, other.port, greeting_of(member), other.machine == self._machine_id != "")
                for member, other in self._registry.others.items()
                if other.host
            )
        return result

    def _cease(self, tp: TopicPartition) -> core.Event | None:
        self._working.discard(tp)
        self._ceasing.add(tp)
        if self._good_bye is None and not self.is_stuck:
            self.changes.tell(Ceased(tp), self._tenures[tp])
            return None
        return self._quiet_by_itself(tp)

    def _quiet_by_itself(self, tp: TopicPartition) -> core.Event:
        """Nobody will say any more that he is done with what ceases: he has left, or is stuck."""
        good_bye, tenure = self._good_bye, self._tenures.pop(tp)
        self._ceasing.discard(tp)
        if good_bye is None:
            self.changes.tell(Dropped(tp), tenure)
            return core.Quiet(tp, None)
        return core.Quiet(tp, self._stamped(good_bye.positions.get(tp)) if good_bye.tenures.get(tp) == tenure else None)

    def _quiet(self, tp: TopicPartition, position: CommittedOffset | None) -> None:
        self._ceasing.discard(tp)
        del self._tenures[tp]
        self._do(core.Quiet(tp, self._stamped(position)))

    def _drop(self, tp: TopicPartition) -> None:
        self._working.discard(tp)
        self._ceasing.discard(tp)
        self.changes.tell(Dropped(tp), self._tenures.pop(tp))

    def _leave(self) -> None:
        while self._ceasing:  # giving one up may drop others
            self._do(self._quiet_by_itself(min(self._ceasing)))
        self._do(core.Leave())

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
            if lost := sorted(tp for tp in offsets if self._tenures.get(tp, 0) != commit.tenures.get(tp)):
                raise IllegalGeneration(
                    f"{', '.join(map(str, lost))}: member {self._id} of group {self._group} has not, or not any more, "
                    "what it was read under: nothing was committed, and its owner reads it again"
                )
            self._registry.claims.commit({tp: self._stamped(offset) or offset for tp, offset in offsets.items()})
        except Exception as error:  # noqa: BLE001 - the caller's to deal with: the member goes on
            known = isinstance(error, RaylogError)
            done.set_exception(error if known else RaylogError(f"group {self._group}: commit met {told(error)}"))
            for tp in sorted(self._working & offsets.keys()):
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
        due = [self._renew_at_ms]
        if (tick := self._machine.next_tick_ms()) is not None:
            due.append(tick)
        if not self.is_stuck and self._good_bye is None:
            due.append(MonotonicMs(self.polled_ms + self._max_poll_interval_ms + 1))
        return max(0, min(due) - self._now_ms()) / 1_000

    def _do_what_is_due(self) -> None:
        self._renew_lease_if_due()
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

    def _renew_lease_if_due(self) -> None:
        if self._renew_at_ms <= self._now_ms():
            self._renew_lease()

    def _renew_lease(self) -> None:
        self._renew_at_ms = MonotonicMs(self._now_ms() + self._store.session_timeout_ms // RENEWALS_PER_SESSION)
        if not self._registry.session_id:
            return
        try:
            sent = self._store.heartbeat()
            if self._store.session.id == self._registry.session_id:  # else it proves nothing about our claims
                self.lease.renew(sent, self._store.session_timeout_ms)
        except StoreError:
            pass  # it runs out by itself; the next round tries again
