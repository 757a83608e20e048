"""◆ The members of a classic group, by their ids and by their instance ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from raylog.broker.groups.classic.messages import Identity, Join, JoinedMember, Leaver, Protocol, Token
from raylog.broker.groups.classic.stored import StoredGroup, StoredMember
from raylog.protocol.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InvalidRequest,
    UnknownMemberId,
)
from raylog.protocol.ids import InstanceId, MemberId, MonotonicMs
from raylog.protocol.wire.consumer_protocol import PROTOCOL_TYPE, subscribed_topics

__all__ = ["Member", "Members"]


@dataclass(slots=True)
class Member:
    """One member; its owner is the group's state machine."""

    id: MemberId
    instance_id: InstanceId | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    expires_ms: MonotonicMs
    """When its session ends unless it is heard of before. Not while one of its requests waits here: the answer begins
    the session anew.
    """
    assignment: bytes = b""
    must_sync: bool = False
    """A generation has begun, and it has not asked for its part in it yet."""
    joining: Token | None = None
    """Its JoinGroup that waits for the others."""
    syncing: Token | None = None
    """Its SyncGroup that waits for the leader's."""

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def metadata(self, protocol: str) -> bytes:
        """What it says of itself in ``protocol``'s words, which it supports."""
        return next(p.metadata for p in self.protocols if p.name == protocol)

    def heard(self, now_ms: MonotonicMs) -> None:
        self.expires_ms = MonotonicMs(now_ms + self.session_timeout_ms)

    def update(self, join: Join, now_ms: MonotonicMs) -> None:
        """It joined again, perhaps with other wishes."""
        self.client_id, self.client_host = join.client_id, join.client_host
        self.session_timeout_ms, self.rebalance_timeout_ms = join.session_timeout_ms, join.rebalance_timeout_ms
        self.protocols = join.protocols
        self.heard(now_ms)

    @classmethod
    def of(cls, member_id: MemberId, join: Join, now_ms: MonotonicMs) -> Member:
        return cls(
            member_id,
            join.instance_id,
            join.client_id,
            join.client_host,
            join.session_timeout_ms,
            join.rebalance_timeout_ms,
            join.protocols,
            MonotonicMs(now_ms + join.session_timeout_ms),
        )


@dataclass(slots=True)
class Members:
    """Members in the order in which they joined first, which the leader's election and assignors see."""

    _by_id: dict[MemberId, Member] = field(default_factory=dict)
    _by_instance: dict[InstanceId, MemberId] = field(default_factory=dict)

    @classmethod
    def stored(cls, group: StoredGroup, now_ms: MonotonicMs) -> Members:
        """Those of a group that another coordinator left; their sessions begin anew."""
        members = cls()
        for kept in group.members:
            protocols = (Protocol(group.protocol, kept.metadata),)
            expires_ms = MonotonicMs(now_ms + kept.session_timeout_ms)
            members.add(Member(*kept[:6], protocols, expires_ms, kept.assignment))
        return members

    def to_store(self, protocol: str) -> tuple[StoredMember, ...]:
        """What of them must outlive this coordinator; all support ``protocol``."""
        return tuple(
            StoredMember(
                m.id, m.instance_id, m.client_id, m.client_host, m.session_timeout_ms, m.rebalance_timeout_ms,
                m.metadata(protocol), m.assignment,
            )
            for m in self
        )  # fmt: skip

    def as_told(self, protocol: str) -> tuple[JoinedMember, ...]:
        """As the group's leader sees them; all support ``protocol``."""
        return tuple(JoinedMember(member.id, member.instance_id, member.metadata(protocol)) for member in self)

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, member_id: MemberId) -> bool:
        return member_id in self._by_id

    def __getitem__(self, member_id: MemberId) -> Member:
        return self._by_id[member_id]

    def of_instance(self, instance_id: InstanceId | None) -> Member | None:
        """The static member of that name, if there is one."""
        member_id = self._by_instance.get(instance_id) if instance_id is not None else None
        return self._by_id[member_id] if member_id is not None else None

    def find(self, member_id: MemberId, instance_id: InstanceId | None) -> Member:
        """Raises UnknownMemberId, or FencedInstanceId when a newer member has the instance id."""
        if instance_id is not None:
            static = self.of_instance(instance_id)
            if static is None:
                raise UnknownMemberId(f"no member has group.instance.id {instance_id!r}: join again")
            if static.id != member_id:
                raise FencedInstanceId(
                    f"a newer consumer has joined with group.instance.id {instance_id!r}, so member {member_id} is "
                    "fenced; give each consumer an id of its own"
                )
            return static
        if member_id not in self._by_id:
            raise UnknownMemberId(f"the group has no member {member_id!r} (any more): join again")
        return self._by_id[member_id]

    def leaving(self, leaver: Leaver) -> Member:
        """:meth:`find`; who names its instance id alone is known by it."""
        static = self.of_instance(leaver.instance_id)
        return static if static is not None and not leaver.member_id else self.find(*leaver)

    def identify(self, who: Identity) -> Member:
        """:meth:`find` for a request that names its sender."""
        return self.find(who.member_id, who.instance_id)

    def add(self, member: Member) -> None:
        self._by_id[member.id] = member
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member.id

    def remove(self, member: Member) -> None:
        del self._by_id[member.id]
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]

    def rename(self, member: Member, member_id: MemberId) -> None:
        """A static member has come again: what it was, under a new id and in the same place."""
        self._by_id = {member_id if known == member.id else known: m for known, m in self._by_id.items()}
        member.id = member_id
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member_id

    def check_room(self, join: Join, max_size: int, *, joining: bool) -> None:
        """Raises GroupMaxSizeReached, as Kafka does: while members are ``joining``, those that have joined take the
        places, so that the last ones find none; before and after, those that are members. Ids that were given out take
        none.
        """
        known = self.of_instance(join.instance_id) if not join.member_id else self._by_id.get(join.member_id)
        if known is not None and (not joining or known.joining is not None):
            return
        taken = sum(member.joining is not None for member in self) if joining else len(self)
        if taken >= max_size:
            raise GroupMaxSizeReached(f"the group has {max_size} members already (group.max.size)")

    def check_protocols(self, join: Join, protocol_type: str) -> None:
        """Raises InconsistentGroupProtocol unless a member that joins so could work with all that there are, of a
        group of ``protocol_type``: as in Kafka also with itself, when it comes again.
        """
        protocols = join.protocols
        if not join.protocol_type:
            raise InconsistentGroupProtocol("the member names no protocol type")
        if len(self) and join.protocol_type != protocol_type:
            raise InconsistentGroupProtocol(
                f"the group is of type {protocol_type!r}, the member of {join.protocol_type!r}: use another group.id"
            )
        if not protocols:
            raise InconsistentGroupProtocol("the member names no protocol to assign partitions by")
        common = _common(tuple(self))
        if len(self) and not common & {protocol.name for protocol in protocols}:
            raise InconsistentGroupProtocol(
                f"the member supports {', '.join(protocol.name for protocol in protocols)}, the group's all support "
                f"{', '.join(sorted(common))}: partition.assignment.strategy must share one"
            )

    def wants_the_same(self, member: Member, join: Join, elected: str) -> bool:
        """True when an assignment by ``elected`` can stand although the member has started again: it says the same in
        that one's words, and no other would be elected. A consumer says beside its topics what it owned and in which
        generation (KIP-429, KIP-792), which it does not know any more: so its topics count alone.
        """
        before, now = _said(member.protocols, elected), _said(join.protocols, elected)
        same = before == now
        if not same and before is not None and now is not None and join.protocol_type == PROTOCOL_TYPE:
            try:
                same = subscribed_topics(before) == subscribed_topics(now)
            except InvalidRequest:
                pass  # it speaks in another way: then only the same bytes are the same
        return same and self._still_elects(elected, member, join.protocols)

    def _still_elects(self, elected: str, member: Member, protocols: tuple[Protocol, ...]) -> bool:
        before, member.protocols = member.protocols, protocols
        try:
            return self.elect_protocol() == elected
        finally:
            member.protocols = before

    def elect_protocol(self) -> str:
        """The one that most members like best among those that all support; of equals, the first by name."""
        common = _common(tuple(self))
        votes: dict[str, int] = {}
        for member in self:
            choice = next(protocol.name for protocol in member.protocols if protocol.name in common)
            votes[choice] = votes.get(choice, 0) + 1
        return min(votes, key=lambda name: (-votes[name], name))


def _said(protocols: Sequence[Protocol], name: str) -> bytes | None:
    return next((protocol.metadata for protocol in protocols if protocol.name == name), None)


def _common(members: Sequence[Member]) -> set[str]:
    names = [{protocol.name for protocol in member.protocols} for member in members]
    return set.intersection(*names) if names else set()
