"""◆ A consumer's membership in a group of actors: what it sees in the registries, and what follows from it.

The paper (Kreps et al., 2011, section 3.2) has each consumer work out all shares by itself, from registries that two of
them may see differently. Here one of them, the *elected* one, whose id is the lowest of those registered, works them
out and publishes them, by compare-and-set on a version that it read *before* it read the registries; the others read
that alone (``groups.view``). An assignment only says who should own what. Ownership itself is the ephemeral owner node:

    ──► CLAIMING ──► OWNED ──► REVOKED ──► RELEASING ──►
          │  ▲         │  assigned to another: hand no more out, commit, give the owner node up
          └──┘         └─► the session or the claim is lost: nothing of it counts any more
      another has it still:
      again, a little later

:class:`Member` takes one event after the other and answers effects (``group_events``), which the owner's shell carries
out against the MetadataStore, in order; the event that an effect leads to is handed in before any other. Claims, with
the versions that fence commits, are the shell's (``offsets``). A member never delivers records; it says when the shell
may, and the shell asks its lease besides: a session that has ended without our noticing owns nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from raylog.coordination.groups.assignors import Assignor, Subscriber, assign
from raylog.coordination.metadata.group_events import (
    Assign,
    Claimed,
    ClaimInDoubt,
    ClaimLost,
    ClaimPartition,
    ClaimRefused,
    Deregister,
    Deregistered,
    DeregisterFailed,
    Died,
    Effect,
    Event,
    Evict,
    Leave,
    Look,
    Looked,
    LookFailed,
    Lose,
    Noticed,
    Publish,
    Published,
    Quiet,
    Register,
    Registered,
    RegistrationFailed,
    Release,
    Released,
    ReleaseFailed,
    Revoke,
    SessionLost,
    Started,
    Tick,
    View,
)
from raylog.coordination.metadata.group_model import CommittedOffset, Shares
from raylog.protocol.ids import NO_GENERATION, Generation, MemberId, MonotonicMs, TopicPartition

__all__ = ["Member"]

RETRY_FIRST_MS = 20
RETRY_MOST_MS = 1_000
HINT_HOLDS_MS = 2_000
"""How long a member is taken for dead after a hint that is not repeated; liveness repeats it while it holds."""
_AT_ONCE = MonotonicMs(0)


class _Phase(Enum):
    CLAIMING = "claiming"
    OWNED = "owned"
    REVOKED = "revoked"
    RELEASING = "releasing"


@dataclass(slots=True)
class _Held:
    """A partition that is, or is to become, or stops being ours."""

    phase: _Phase = _Phase.CLAIMING
    asked: bool = False
    """A claim or a release is under way."""
    wait_ms: int = RETRY_FIRST_MS
    retry_at_ms: MonotonicMs = _AT_ONCE
    position: CommittedOffset | None = None
    in_doubt: bool = False
    """A claim was not answered: it may have been made."""


@dataclass(slots=True)
class Member:
    """One member of one group. One thread calls :meth:`on`; ``now_ms`` never goes back.

    ``spread`` answers a random number from 0 to 1: retries of many members must not come all at once.
    """

    id: MemberId
    assignor: Assignor
    spread: Callable[[], float]
    generation: Generation = NO_GENERATION
    """Of the assignment that it acts on."""
    mine: frozenset[TopicPartition] = frozenset()
    """What that assigns to it."""
    _registered: bool = False
    _in_doubt: bool = False
    """A registration was not answered: it may have been made."""
    _leaving: bool = False
    _signing_off: bool = False
    """Asked for its node to be deleted."""
    _looking: bool = False
    _look_again: bool = False
    _retry_at_ms: MonotonicMs | None = None
    """When to register or to look again after a failure."""
    _held: dict[TopicPartition, _Held] = field(default_factory=dict)
    _view: View | None = None
    _dead: dict[MemberId, MonotonicMs] = field(default_factory=dict)
    """Whose processes seem gone, and when that was told last."""
    _effects: list[Effect] = field(default_factory=list)

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What may be handed out."""
        return frozenset(tp for tp, held in self._held.items() if held.phase is _Phase.OWNED)

    @property
    def has_left(self) -> bool:
        """True when nothing is left to give up."""
        return not self._registered and not self._in_doubt and not self._held

    @property
    def is_settled(self) -> bool:
        """True when what it owns is what it should."""
        return self._registered and self.owned == self.mine and not self._looking

    def next_tick_ms(self) -> MonotonicMs | None:
        """When something must be tried again; None: nothing must."""
        due = [] if self._retry_at_ms is None else [self._retry_at_ms]
        due += [
            held.retry_at_ms
            for held in self._held.values()
            if not held.asked and held.phase in (_Phase.CLAIMING, _Phase.RELEASING)
        ]
        return min(due, default=None)

    def on(self, event: Event, now_ms: MonotonicMs) -> list[Effect]:  # noqa: C901 (one case for each event)
        """What follows from ``event``."""
        match event:
            case Started():
                self._leaving = self._signing_off = False
                self._effects.append(Register())
            case Registered():
                self._registered, self._in_doubt, self._retry_at_ms = True, False, None
                self._look()
            case RegistrationFailed():
                self._in_doubt = True
                self._retry_at_ms = self._later(RETRY_MOST_MS, now_ms)
            case Deregistered():
                self._registered, self._in_doubt, self._retry_at_ms = False, False, None
            case LookFailed() | DeregisterFailed():
                self._looking = self._look_again = False
                self._retry_at_ms = self._later(RETRY_MOST_MS, now_ms)
            case Noticed() | Published():
                self._look()
            case Looked(view):
                self._looked(view, now_ms)
            case Claimed(tp):
                self._claimed(tp)
            case ClaimRefused(tp) | ClaimInDoubt(tp) | ReleaseFailed(tp):
                self._try_later(tp, now_ms, in_doubt=isinstance(event, ClaimInDoubt))
            case Quiet(tp, position):
                if self._is(tp, _Phase.REVOKED):  # else it was lost meanwhile
                    self._release(tp, position)
            case Released(tp):
                if self._is(tp, _Phase.RELEASING):
                    del self._held[tp]
                    self._follow(self.mine)  # perhaps it was assigned to us again
            case ClaimLost(tp):
                self._lose(tp)
                self._look()
            case SessionLost():
                self._registered = self._in_doubt = self._signing_off = False
                self._looking = self._look_again = False
                self._retry_at_ms = None
                for tp in tuple(self._held):
                    self._forget(tp)
            case Died(member):
                if member != self.id:
                    self._dead[member] = now_ms
                if self._view is None or self._view.is_whole:
                    self._evict(now_ms)
                else:
                    self._look()
            case Leave():
                self._leaving = True
                self._follow(frozenset())
            case Tick():
                self._retry(now_ms)
        if self._leaving and not self.has_left and not self._held and not self._signing_off:
            self._signing_off = True
            self._effects.append(Deregister())
        effects, self._effects = self._effects, []
        return effects

    # --- the registries ---

    def _look(self) -> None:
        """Read them, once more if that is under way: what it reads may be older than what we heard of."""
        if not self._registered or self._signing_off:
            return
        if self._looking:
            self._look_again = True
            return
        self._looking = True
        self._effects.append(Look())

    def _looked(self, view: View, now_ms: MonotonicMs) -> None:
        self._looking, self._view, self._retry_at_ms = False, view, None
        if self._look_again:
            self._look_again = False
            self._look()
        if not self._registered:
            return
        if self.id not in view.members:  # somebody took us for dead
            self._registered = False
            for tp in tuple(self._held):
                self._forget(tp)
            if not self._leaving:
                self._effects.append(Register())
            return
        self._evict(now_ms)
        if self.id == min(view.members) and self._publish(view):
            return
        if view.shares is not None and not self._leaving:
            self.generation = max(self.generation, view.shares.generation)  # a share may be older than the assignment
            self._follow(frozenset(view.shares.members.get(self.id, ())))

    def _publish(self, view: View) -> bool:
        """Publish who should own what, where that is not what stands written."""
        before = view.shares or Shares(NO_GENERATION, {})
        subscribers = {
            member: Subscriber(topics, before.members.get(member, ())) for member, topics in view.members.items()
        }
        shares = assign(self.assignor, subscribers, view.partitions)
        if view.shares is not None and shares == dict(before.members):
            return False
        self._effects.append(Publish(Shares(Generation(before.generation + 1), shares), view.version))
        return True

    def _evict(self, now_ms: MonotonicMs) -> None:
        """The elected one does it; if that one died, the next."""
        if self._view is None or not self._view.is_whole or not self._registered:
            return
        members = self._view.members.keys()
        self._dead = {
            member: told_ms
            for member, told_ms in self._dead.items()
            if member in members and now_ms - told_ms < HINT_HOLDS_MS
        }
        living = members - self._dead.keys()
        if self._dead and self.id == min(living, default=None):
            self._effects += [Evict(member) for member in sorted(self._dead)]
            self._dead.clear()  # where it fails, we are told again
            self._look()

    # --- partitions ---

    def _is(self, tp: TopicPartition, phase: _Phase) -> bool:
        held = self._held.get(tp)
        return held is not None and held.phase is phase

    def _follow(self, mine: frozenset[TopicPartition]) -> None:
        """Own exactly these, in the end."""
        self.mine = mine
        for tp in sorted(self._held.keys() - mine):
            held = self._held[tp]
            if held.phase is _Phase.OWNED:
                held.phase = _Phase.REVOKED
                self._effects.append(Revoke(tp))
            elif held.phase is _Phase.CLAIMING and not held.asked:
                self._give_up_claim(tp, held)
        for tp in sorted(mine - self._held.keys()):
            self._claim(tp, self._held.setdefault(tp, _Held()))

    def _claim(self, tp: TopicPartition, held: _Held) -> None:
        held.asked = True
        self._effects.append(ClaimPartition(tp))

    def _give_up_claim(self, tp: TopicPartition, held: _Held) -> None:
        """It is wanted no more, and not ours as far as we know."""
        if held.in_doubt:
            self._release(tp, None)
        else:
            del self._held[tp]

    def _claimed(self, tp: TopicPartition) -> None:
        held = self._held.setdefault(tp, _Held())
        held.asked, held.in_doubt, held.wait_ms = False, False, RETRY_FIRST_MS
        if tp in self.mine and self._registered and held.phase is _Phase.CLAIMING:
            held.phase = _Phase.OWNED
            self._effects.append(Assign(tp))
        else:  # it was assigned to another meanwhile
            self._release(tp, None)

    def _release(self, tp: TopicPartition, position: CommittedOffset | None) -> None:
        held = self._held[tp]
        held.phase, held.position, held.asked = _Phase.RELEASING, position, True
        self._effects.append(Release(tp, position))

    def _forget(self, tp: TopicPartition) -> None:
        """It is not ours any more, without our doing."""
        held = self._held.pop(tp, None)
        if held is not None and held.phase in (_Phase.OWNED, _Phase.REVOKED):
            self._effects.append(Lose(tp))

    def _lose(self, tp: TopicPartition) -> None:
        """Its claim holds no more. What is left of it, an owner's node, has to be given up all the same."""
        held = self._held.get(tp)
        if held is None:
            return
        if held.phase is _Phase.RELEASING:
            if held.asked:  # else the release has failed, and is tried again
                del self._held[tp]
            return
        if held.phase in (_Phase.OWNED, _Phase.REVOKED):
            self._effects.append(Lose(tp))
        self._release(tp, None)

    # --- again ---

    def _try_later(self, tp: TopicPartition, now_ms: MonotonicMs, *, in_doubt: bool) -> None:
        held = self._held.get(tp)
        if held is None:
            return
        held.asked, held.in_doubt = False, in_doubt
        if held.phase is _Phase.CLAIMING and tp not in self.mine:
            self._give_up_claim(tp, held)
            return
        held.retry_at_ms = self._later(held.wait_ms, now_ms)
        held.wait_ms = min(2 * held.wait_ms, RETRY_MOST_MS)

    def _later(self, wait_ms: int, now_ms: MonotonicMs) -> MonotonicMs:
        return MonotonicMs(now_ms + 1 + int(wait_ms * (1 + self.spread()) / 2))

    def _retry(self, now_ms: MonotonicMs) -> None:
        if self._retry_at_ms is not None and self._retry_at_ms <= now_ms:
            self._retry_at_ms = None
            if self._signing_off:
                self._effects.append(Deregister())
            elif self._registered:
                self._look()
            elif not self._leaving:
                self._effects.append(Register())
        for tp, held in self._held.items():
            if held.asked or held.retry_at_ms > now_ms:
                continue
            if held.phase is _Phase.CLAIMING:
                self._claim(tp, held)
            elif held.phase is _Phase.RELEASING:
                self._release(tp, held.position)
