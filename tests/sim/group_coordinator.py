"""A simulated broker's coordinator: around the product's claims and machines, what the real one has in threads.

One thread serves requests of members and the machines' ticks; another writes commits, a little later and with the
fence read when it writes, as the real committer does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from raylog.broker.groups.classic_claims import coordinator_of, decode_claim, decode_group
from raylog.broker.groups.classic_messages import Identity, Join, Joined, Leaver, Sync
from raylog.broker.groups.classic_stored import GroupRules
from raylog.broker.groups.held import Claimant, HeldGroup, read_claim
from raylog.coordination import group_paths
from raylog.coordination.group_model import CommittedOffset
from raylog.coordination.offsets import RegistryOffsetStore
from raylog.coordination.store import BadVersion, Op, StoreError
from raylog.protocol.errors import CoordinatorNotAvailable, NotCoordinator, RaylogError
from raylog.protocol.ids import BrokerId, MemberId, TopicPartition

from .engine import Thread
from .group_invariants import CLIENTS, Settled
from .network import Answer

if TYPE_CHECKING:
    from .broker import SimBroker

TICK_MS = 50
LINGERS_MS = (1, 5, 5, 20)
RULES = GroupRules(min_session_timeout_ms=10, max_session_timeout_ms=60_000, initial_rebalance_delay_ms=100)


class FindCoordinator(NamedTuple):
    """FindCoordinator: who coordinates the group?"""


class Heartbeat(NamedTuple):
    who: Identity


class Leave(NamedTuple):
    leaver: Leaver


class Commit(NamedTuple):
    """OffsetCommit."""

    who: Identity
    offsets: dict[TopicPartition, CommittedOffset]


class FetchOffsets(NamedTuple):
    """OffsetFetch."""

    partitions: Sequence[TopicPartition]


def settled(data: bytes) -> Settled:
    """What a coordinator has stored, for the checker."""
    group = decode_group(group_paths.state(CLIENTS), data)
    return Settled(
        group.generation,
        {member.id: member.assignment for member in group.members},
        {member.id: member.instance_id or member.id for member in group.members},
    )


def coordinator(data: bytes) -> BrokerId:
    """Which broker has claimed the group, for the checker."""
    return decode_claim(group_paths.claim(CLIENTS), data).broker


class Coordinating:
    """See the module."""

    def __init__(self, broker: SimBroker, claim: Callable[..., HeldGroup | None]) -> None:
        self._broker = broker
        self._engine = broker.engine
        self._claim = claim
        self._thread = Thread(broker.process)
        self._committing = Thread(broker.process)
        self._offsets = RegistryOffsetStore(broker.store)
        self._held: HeldGroup | None = None
        self._member_ids = 0
        self._engine.at(TICK_MS, self._thread, self._tick)

    def serve(self, request: Any, answer: Answer) -> None:
        """A client asks; any thread."""
        self._engine.at(0, self._thread, lambda: self._serve(request, answer))

    def stop(self) -> None:
        """An orderly stop: whoever waits looks for another coordinator."""
        self._lose(NotCoordinator("the broker stops"))

    # --- the thread

    def _serve(self, request: Any, answer: Answer) -> None:
        self._broker.store.thread = self._thread
        try:
            self._check()
            if isinstance(request, FindCoordinator):
                answer(self._find())
                return
            held = self._hold()
            result = self._handle(held, request, answer)
            self._check()
        except RaylogError as error:
            answer(error)
        else:
            if result is not None:
                answer(result)

    def _handle(self, held: HeldGroup, request: Any, answer: Answer) -> Any:
        """Answers what is to be answered at once; None: somebody else answers."""
        group, now_ms = held.machine, self._broker.clock()
        match request:
            case Join():
                self._member_ids += 1
                new_id = MemberId(f"{self._broker.process.name.split()[1]}-{self._member_ids}")
                self._settle(held, held.settle(group.join(request, answer, new_id, now_ms)))
            case Sync():
                self._settle(held, held.settle(group.sync(request, answer, now_ms)))
            case Heartbeat(who):
                group.heartbeat(who, now_ms)
                return ()
            case Leave(leaver):
                outcome, [error] = group.leave([leaver], now_ms)
                self._settle(held, held.settle(outcome))
                return error or ()
            case Commit():
                self._fence(held, request)
                delay = self._engine.random.choice(LINGERS_MS)
                self._engine.at(delay, self._thread, lambda: self._commit(held, request, answer))
            case FetchOffsets(partitions):
                return self._offsets.fetch(CLIENTS, partitions)
        return None

    def _find(self) -> BrokerId:
        claim = read_claim(self._broker.store, CLIENTS).claim
        found = coordinator_of(CLIENTS, claim, self._broker.receiver.state)
        if found is None:
            raise CoordinatorNotAvailable("no live broker is known")
        return found.id

    def _check(self) -> None:
        """Under the lease, and in the incarnation that has claimed."""
        try:
            self._broker.check_lease()
        except RaylogError as error:
            self._lose(NotCoordinator(str(error)))
            raise NotCoordinator(str(error)) from error
        if self._held is not None and self._held.claimant.epoch != self._broker.info.epoch:
            self._lose(NotCoordinator("the broker has registered anew"))

    def _hold(self) -> HeldGroup:
        if self._held is None:
            broker = self._broker
            me = Claimant(broker.id, broker.info.epoch)
            state, clock = broker.receiver.state, broker.clock()
            self._held = self._claim(broker.store, CLIENTS, me, state, RULES, clock, make=True)
            self._engine.note(f"{broker.process.name}: coordinates the group")
        assert self._held is not None
        return self._held

    def _tick(self) -> None:
        self._engine.at(TICK_MS, self._thread, self._tick)
        self._broker.store.thread = self._thread
        try:
            self._check()
        except RaylogError:
            return
        held = self._held
        due = held.machine.next_tick_ms() if held is not None else None
        if held is not None and due is not None and due <= self._broker.clock():
            self._settle(held, held.settle(held.machine.tick(self._broker.clock())))

    def _settle(self, held: HeldGroup, replies: Sequence[tuple[Any, Any]]) -> None:
        """Send the replies, if the lease is held still."""
        refused: RaylogError | None = None
        if held.lost is not None:
            self._held = None
        try:
            self._check()
        except RaylogError as error:
            refused = error
        for answer, reply in replies:
            answer(refused or reply)
        if refused is None and any(isinstance(reply, Joined) for _, reply in replies):
            self._broker.world.moment("rebalances", self._broker.id)

    def _lose(self, error: RaylogError) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._engine.note(f"{self._broker.process.name}: coordinates the group no more, {error}")
            for answer, reply in held.lose(error):
                answer(reply)

    # --- commits

    def _fence(self, held: HeldGroup, commit: Commit) -> Sequence[Op]:
        if held.lost is not None:
            raise NotCoordinator("the group was lost meanwhile")
        held.machine.check_commit(commit.who, self._broker.clock())
        return held.fence()

    def _commit(self, held: HeldGroup, commit: Commit, answer: Answer) -> None:
        """The committer asks for the fence under the group's lock, and writes without it."""
        try:
            fence = self._fence(held, commit)
        except RaylogError as error:
            answer(error)
            return
        self._engine.at(0, self._committing, lambda: self._write(held, commit, fence, answer))

    def _write(self, held: HeldGroup, commit: Commit, fence: Sequence[Op], answer: Answer) -> None:
        store = self._broker.store
        store.thread = self._committing
        try:
            self._offsets.write(CLIENTS, commit.offsets, fence)
        except BadVersion:  # another claim, or a write of the group's own: ask again
            self._engine.at(0, self._thread, lambda: self._refused(held, commit, fence, answer))
        except StoreError as error:
            answer(CoordinatorNotAvailable(str(error)))
        else:
            answer(())

    def _refused(self, held: HeldGroup, commit: Commit, fence: Sequence[Op], answer: Answer) -> None:
        if held.lost is None and list(held.fence()) == list(fence):
            if held is self._held:
                self._lose(NotCoordinator("a commit was refused by the store"))
            answer(NotCoordinator("a commit was refused by the store"))
        else:
            self._commit(held, commit, answer)
