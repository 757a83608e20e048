"""Keeps every broker's view up to date: one message under way per broker, deltas in order, a full state in doubt.

When there is nothing to tell, the last message is repeated now and then, without its content: so it is known who can
be reached. A broker that has not answered for long is *silent*. One that registered while this controller is in office
and has answered nothing since is *unheard*. Both are fenced: nobody waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from raylog.coordination.control.peer_control import Ack, AckStatus, UpdateState
from raylog.coordination.controller.events import Send
from raylog.coordination.metadata.model import BrokerInfo, ClusterState
from raylog.protocol.ids import BrokerEpoch, BrokerId, MonotonicMs, TopicName

BEATS = 4
"""Repetitions in the time after which a broker is silent."""


@dataclass(slots=True)
class _Peer:
    """What the controller knows of one broker's incarnation."""

    epoch: BrokerEpoch
    sequence: int
    """Of the last message. A content has its own, so that no late answer is taken for a newer one's."""
    heard_ms: MonotonicMs
    """When it answered last, or when it was to be told something first."""
    is_unheard: bool
    """It has acted on nothing yet, and it is new: the controller did not find it there when it took office."""
    has_failed: bool = False
    """It did not answer the last message."""
    under_way: int | None = None
    """The revision that the unanswered message carries."""
    acknowledged: int = -1
    """The revision that the broker surely has."""
    stale: set[TopicName] = field(default_factory=set)
    """Topics that changed since the last message."""
    needs_full: bool = True
    wait_for_tick: bool = False


class Peers:
    """The fan-out. ``revision`` counts the changes of the cluster's state.

    Sequence numbers go on from ``last_sequence``, that of the mandate before: a controller that resumes the same
    mandate, with the same epoch, must not have its messages taken for repetitions.
    """

    def __init__(self, last_sequence: int = 0, silence_ms: int | None = None) -> None:
        """``silence_ms``: after which time without an answer a broker is silent; None: never."""
        self.revision = 0
        self._silence_ms = silence_ms
        self._now_ms = MonotonicMs(0)
        """At the last tick."""
        self._last_sequence = last_sequence
        self._peers: dict[BrokerId, _Peer] = {}

    @property
    def last_sequence(self) -> int:
        """The highest sequence number used so far."""
        return max([self._last_sequence, *(peer.sequence for peer in self._peers.values())])

    def changed(self, topics: Iterable[TopicName] = ()) -> None:
        """The state has changed: in these topics (new, other, gone), or elsewhere."""
        self.revision += 1
        names = set(topics)
        for peer in self._peers.values():
            peer.stale |= names

    def set_brokers(self, brokers: Mapping[BrokerId, BrokerInfo]) -> None:
        """The registered brokers; a new incarnation starts with a full state."""
        self._last_sequence = self.last_sequence
        old, self._peers = self._peers, {}
        is_new = bool(old)  # else they were there before this controller, and answered another one
        for broker in brokers.values():
            peer = old.get(broker.id)
            if peer is None or peer.epoch != broker.epoch:
                peer = _Peer(broker.epoch, self._last_sequence, self._now_ms, is_new)
            self._peers[broker.id] = peer
        self.changed()

    def all_have(self, revision: int) -> bool:
        """True when every broker that answers acknowledged this revision or a later one."""
        return all(peer.acknowledged >= revision for peer in self._peers.values() if self._is_waited_for(peer))

    def _is_waited_for(self, peer: _Peer) -> bool:
        return not (peer.is_unheard or peer.has_failed or self._is_silent(peer))

    def acknowledged(self, broker_id: BrokerId) -> int:
        """The revision that the broker surely has, in the incarnation that lives; -1 when it has none, or is none."""
        peer = self._peers.get(broker_id)
        return -1 if peer is None else peer.acknowledged

    def due(self, state: ClusterState) -> list[Send]:
        """The messages to send now."""
        free = [(b, peer) for b, peer in self._peers.items() if peer.under_way is None and not peer.wait_for_tick]
        sends = [Send(b, self._news(peer, state)) for b, peer in free if peer.acknowledged < self.revision]
        return sends + [Send(b, self._beat(peer, state)) for b, peer in free if self._is_beat_due(peer)]

    def _news(self, peer: _Peer, state: ClusterState) -> UpdateState:
        full, stale = peer.needs_full, sorted(peer.stale)
        peer.sequence += 1
        peer.under_way, peer.stale = self.revision, set()
        return self._message(peer, state, full=full, stale=stale)

    def _is_beat_due(self, peer: _Peer) -> bool:
        silence_ms = self._silence_ms
        return peer.under_way is None and silence_ms is not None and self._quiet_ms(peer) >= silence_ms // BEATS

    def _beat(self, peer: _Peer, state: ClusterState) -> UpdateState:
        """The last message once more: it is acknowledged without effect."""
        peer.under_way = peer.acknowledged
        return self._message(peer, state, full=False, stale=[])

    def _message(self, peer: _Peer, state: ClusterState, *, full: bool, stale: list[TopicName]) -> UpdateState:
        return UpdateState(
            controller_id=state.controller_id,
            controller_epoch=state.controller_epoch,
            broker_epoch=peer.epoch,
            sequence=peer.sequence,
            full=full,
            cluster_id=state.cluster_id,
            brokers=tuple(state.brokers.values()),
            topics=tuple(
                state.topics.values() if full else (state.topics[name] for name in stale if name in state.topics)
            ),
            deleted=() if full else tuple(name for name in stale if name not in state.topics),
            broker_configs=state.broker_configs,
            fenced=state.fenced,
            unreadable=state.unreadable,
        )

    def acked(self, ack: Ack) -> None:
        """An answer other than STALE_CONTROLLER_EPOCH, which is the controller's own affair."""
        peer = self._answered(ack.broker_id, ack.sequence)
        if peer is None:
            return
        revision, peer.under_way = peer.under_way, None
        peer.heard_ms, peer.has_failed = self._now_ms, False
        if ack.status is AckStatus.OK and revision is not None:
            peer.acknowledged, peer.needs_full, peer.is_unheard = revision, False, False
        else:
            peer.needs_full = True
            peer.wait_for_tick = ack.status is AckStatus.STALE_BROKER_EPOCH

    def failed(self, broker_id: BrokerId, sequence: int) -> None:
        """No answer: the broker may have taken the message in or not. Send everything again, at the next tick."""
        peer = self._answered(broker_id, sequence)
        if peer is not None:
            peer.under_way, peer.needs_full, peer.wait_for_tick, peer.has_failed = None, True, True, True

    def tick(self, now_ms: MonotonicMs) -> None:
        """Time passes. What passes between two ticks that are far apart tells nothing: we did not listen ourselves."""
        was_away = self._silence_ms is not None and now_ms - self._now_ms > self._silence_ms // BEATS
        self._now_ms = now_ms
        for peer in self._peers.values():
            peer.wait_for_tick = False
            if was_away:
                peer.heard_ms = now_ms

    def silent(self) -> frozenset[BrokerId]:
        """The registered brokers that have not answered for so long."""
        return frozenset(b for b, peer in self._peers.items() if self._is_silent(peer))

    def doubtful(self) -> frozenset[BrokerId]:
        """Those that have not answered for half that time: they missed at least one repetition."""
        silence_ms = self._silence_ms
        if silence_ms is None:
            return frozenset()
        return frozenset(b for b, peer in self._peers.items() if self._quiet_ms(peer) * 2 >= silence_ms)

    def unheard(self) -> frozenset[BrokerId]:
        """The brokers that registered anew and have answered nothing since."""
        return frozenset(b for b, peer in self._peers.items() if peer.is_unheard)

    def _is_silent(self, peer: _Peer) -> bool:
        return self._silence_ms is not None and self._quiet_ms(peer) >= self._silence_ms

    def _quiet_ms(self, peer: _Peer) -> int:
        return self._now_ms - peer.heard_ms

    def _answered(self, broker_id: BrokerId, sequence: int) -> _Peer | None:
        """The peer whose message this answers; None when it is late or repeated."""
        peer = self._peers.get(broker_id)
        if peer is None or peer.under_way is None or peer.sequence != sequence:
            return None
        return peer
