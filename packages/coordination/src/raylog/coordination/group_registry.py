"""◆ One member's side of the registries: carries out what it has decided (``group_events``) against the MetadataStore.

What makes two members agree is in the checks of each write:

* Registering checks the group's kind. Claiming and publishing check the member's own registration: its node ends with
  its session or by eviction, and nothing that was decided before is done after that.
* A claim also writes the persistent node of the offset, whose version only grows. Whoever commits, gives up or evicts
  names that version: none of these touches what another has claimed meanwhile (``group_claims``).

What one change of membership costs grows with the members and the partitions that move: all read the assignment and who
is there, the elected one alone reads what the newcomers want, and topics only when they changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import assert_never

from raylog.coordination import group_paths, paths
from raylog.coordination.group_claims import GroupClaims
from raylog.coordination.group_events import (
    ClaimPartition,
    Deregister,
    Deregistered,
    DeregisterFailed,
    Event,
    Evict,
    Look,
    Looked,
    LookFailed,
    Publish,
    Published,
    Register,
    Registered,
    RegistrationFailed,
    Release,
    Shares,
    View,
)
from raylog.coordination.group_kinds import GroupKind, settle_kind
from raylog.coordination.group_model import Registered as Member
from raylog.coordination.node_json import CorruptMetadata
from raylog.coordination.offsets import OP_BYTES, partitions_below
from raylog.coordination.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    EventSink,
    MetadataStore,
    NodeEvent,
    NodeExists,
    NoNode,
    Op,
    Set,
    Stat,
    StoreError,
)
from raylog.coordination.topic_patterns import matching_topics
from raylog.protocol.errors import InvalidConfig
from raylog.protocol.ids import Generation, GroupId, MemberId, TimestampMs, TopicName, TopicPartition

__all__ = ["GroupRegistry", "StoreEffect", "greeting_of"]

log = logging.getLogger(__name__)

StoreEffect = Register | Deregister | Look | Publish | ClaimPartition | Release | Evict

_NOT_SEEN = MemberId("")
_MOST_BYTES = 1_000_000
"""What ZooKeeper takes at once, and a little less: some hundred thousand partitions in one node."""


class GroupRegistry:
    """See the module. One thread calls it; a session that is lost is told by :meth:`session_lost`."""

    def __init__(
        self,
        store: MetadataStore,
        group: GroupId,
        member_id: MemberId,
        member: Member,
        sink: EventSink,
        wall_ms: Callable[[], TimestampMs],
    ) -> None:
        """``sink`` gets the events of the watches; hand each to :meth:`noticed` before anything else."""
        self._store = store
        self._group = group
        self._id = member_id
        self._member = member
        self._sink = sink
        self._wall_ms = wall_ms
        self.claims = GroupClaims(store, group, member_id)
        self._node = group_paths.member(group, member_id)
        self._known: dict[MemberId, Member] = {}
        """What others registered, read once: an id is not used again for something else, but by who was evicted."""
        self._dead: set[MemberId] = set()
        """Those registered whose processes seem gone."""
        self._counts: dict[TopicName, int] = {}
        """Of partitions; each was read with a watch that has not told anything yet."""
        self.session_id = 0
        """Of the session that the registration is of; 0 while there is none."""
        self.elected = _NOT_SEEN
        """Who works the shares out, when last looked."""

    def seems_dead(self, member: MemberId) -> None:
        """Read of it anew, and look for the next elected one beside it: that one may be dead as well."""
        self._dead.add(member)
        self._known.pop(member, None)

    @property
    def others(self) -> Mapping[MemberId, Member]:
        """Those whose death concerns this member, when it last looked: the elected one; to that one, all."""
        return {member: found for member, found in self._known.items() if member != self._id}

    def noticed(self, event: NodeEvent) -> None:
        """A watch has told something: what was read of that node is old."""
        parent, _, name = event.path.rpartition("/")
        if parent == paths.BROKER_TOPICS:
            self._counts.pop(TopicName(name), None)

    def watches_lost(self) -> None:
        """The connection was down meanwhile: all that was read is old."""
        self._counts.clear()

    def session_lost(self) -> None:
        """The session has ended, with all that the member claimed in it."""
        self.session_id = 0
        self.claims.session_lost()
        self._counts.clear()

    def carry_out(self, effect: StoreEffect) -> Event | None:
        """Do it, and answer the event that tells the member how that went.

        Raises InconsistentGroupProtocol and InvalidGroupId when the member cannot be one of this group.
        """
        match effect:
            case Register():
                return self._register()
            case Deregister():
                return self._deregister()
            case Look():
                return self._look()
            case Publish(shares, version):
                return self._publish(shares, version)
            case ClaimPartition(tp):
                return self.claims.claim(tp)
            case Release(tp, position):
                return self.claims.release(tp, position)
            case Evict(member):
                self._evict(member)
                return None
            case _:
                assert_never(effect)

    # --- coming and going ---

    def _register(self) -> Event:
        try:
            self.claims.abandon()
            self._note_eviction()
            settled = settle_kind(self._store, self._group, GroupKind.ACTORS)
            data = group_paths.encode_member(self._member, self._wall_ms())
            try:
                self._store.multi([settled.check(self._group), Create(self._node, data, ephemeral=True)])
            except NodeExists:
                pass  # ours, if the answer to an earlier try was lost
            node = self._own_node()
            if node is None:
                return RegistrationFailed()
        except StoreError:
            return RegistrationFailed()
        self.session_id = node.ephemeral_owner
        return Registered()

    def _note_eviction(self) -> None:
        """Who was taken for dead though he lives, by connections that fail, is not to be so again and again."""
        if self.session_id == self._store.session.id and self._own_node() is None:
            log.warning(
                "group %s: member %s was taken for dead; it registers anew, and others will wait for its session",
                self._group, self._id,
            )  # fmt: skip
            self._member = self._member._replace(host="", port=-1)

    def _deregister(self) -> Event:
        self.session_id = 0  # whatever is heard of it
        try:
            self.claims.abandon()
            if self._own_node() is not None:
                self._store.delete(self._node)
        except NoNode:
            pass  # evicted
        except StoreError:
            return DeregisterFailed()
        return Deregistered()

    def _evict(self, member: MemberId) -> None:
        """All of it at once, and only if the member has claimed and committed nothing since we looked: else it lives.

        Its own node goes in the same multi: so none of what it owns can be claimed anew by it in between.
        """
        try:
            owned = [tp for tp, owner in self._owners() if owner == member]
            nodes = [group_paths.offset(self._group, tp) for tp in owned]
            versions = self._store.get_many(nodes)
            again = self._store.get_many([group_paths.owner(self._group, tp) for tp in owned])
            ops: list[Op] = [Delete(group_paths.member(self._group, member))]
            for tp, node, found, owner in zip(owned, nodes, versions, again, strict=True):
                if found is not None and owner is not None and owner.data == group_paths.encode_owner(member):
                    ops += [Check(node, found.version), Delete(group_paths.owner(self._group, tp))]
            if sum(len(op.path) + OP_BYTES for op in ops) > _MOST_BYTES:
                log.info("group %s: member %s owns too much to be evicted, its session will tell", self._group, member)
                return
            self._store.multi(ops)
        except (StoreError, CorruptMetadata) as error:
            log.info("group %s: member %s was not evicted, its session will tell: %s", self._group, member, error)
        else:
            log.warning("group %s: the process of member %s is gone, it was evicted", self._group, member)

    def _owners(self) -> Iterable[tuple[TopicPartition, MemberId]]:
        partitions = partitions_below(self._store, group_paths.owners(self._group))
        nodes = [group_paths.owner(self._group, tp) for tp in partitions]
        for tp, node, found in zip(partitions, nodes, self._store.get_many(nodes), strict=True):
            if found is not None:
                yield tp, group_paths.decode_owner(node, found.data)

    # --- looking and publishing ---

    def _look(self) -> Event:
        try:
            return Looked(self._view())
        except StoreError:
            return LookFailed()

    def _view(self) -> View:
        found = self._store.get(group_paths.assignment(self._group), self._sink)  # before the registries: see group
        names = self._store.children(group_paths.members(self._group), self._sink)
        ids = [group_paths.member_of(name) for name in names]
        self.elected = min(ids, default=_NOT_SEEN)
        self._dead &= set(ids)
        self._read_members(ids if self.elected == self._id else self._elected(ids))
        wanted: dict[MemberId, frozenset[TopicName]] = dict.fromkeys(ids, frozenset())
        partitions: Mapping[TopicName, int] = {}
        if self.elected == self._id:
            wanted = self._wanted()
            partitions = self._count(frozenset[TopicName]().union(*wanted.values()))
        version = -1 if found is None else found.version
        return View(None if found is None else self._shares(found.data, version), version, wanted, partitions)

    def _elected(self, ids: Iterable[MemberId]) -> list[MemberId]:
        """The elected one; if that seems dead, the next one, too, and so on up to ourselves."""
        found: list[MemberId] = []
        for member in sorted(ids):
            found.append(member)
            if member not in self._dead:
                break
        return found

    def _shares(self, data: bytes, version: int) -> Shares:
        try:
            return group_paths.decode_assignment(self._group, data)
        except CorruptMetadata as error:  # the elected one writes it anew; each write raised both numbers by one
            log.error("group %s: %s: it is written anew", self._group, error)
            return Shares(Generation(version), {})

    def _read_members(self, ids: Sequence[MemberId]) -> None:
        """Know of these what they registered; who is gone meanwhile is left out."""
        self._known = {member: self._known[member] for member in ids if member in self._known}
        new = [member for member in ids if member not in self._known]
        nodes = [group_paths.member(self._group, member) for member in new]
        for member, node, found in zip(new, nodes, self._store.get_many(nodes) if nodes else (), strict=True):
            if found is None:
                continue
            try:
                self._known[member] = group_paths.decode_member(node, found.data)
            except CorruptMetadata as error:
                log.error("group %s: member %s gets no partitions: %s", self._group, member, error)
                self._known[member] = Member(frozenset(), None)

    def _wanted(self) -> dict[MemberId, frozenset[TopicName]]:
        """What each member subscribes to; of a pattern, the topics there are that match it."""
        topics: list[TopicName] = []
        if any(member.pattern is not None for member in self._known.values()):
            topics = [TopicName(name) for name in self._store.children(paths.BROKER_TOPICS, self._sink)]
        return {id_: _topics_of(member, topics) for id_, member in self._known.items()}

    def _count(self, topics: Iterable[TopicName]) -> dict[TopicName, int]:
        """How many partitions each has; a topic that does not exist has none, until the watch tells that it does."""
        for topic in sorted(set(topics) - self._counts.keys()):
            found = self._store.get(paths.topic(topic), self._sink)
            try:
                self._counts[topic] = 0 if found is None else len(paths.decode_topic(topic, found.data).replicas)
            except CorruptMetadata as error:
                log.error("group %s: topic %s is shared out to nobody: %s", self._group, topic, error)
                self._counts[topic] = 0
        return {topic: self._counts[topic] for topic in topics if self._counts[topic] > 0}

    def _publish(self, shares: Shares, version: int) -> Event:
        node, data = group_paths.assignment(self._group), group_paths.encode_assignment(shares)
        if len(data) > _MOST_BYTES:  # ZooKeeper would drop the connection instead of an answer
            log.error(
                "group %s: the assignment has %d bytes, which is too large: read in more groups", self._group, len(data)
            )
            return LookFailed()
        write = Create(node, data) if version < 0 else Set(node, data, version)
        try:
            self._store.multi([self.claims.registration, write])
        except (NodeExists, BadVersion) as error:
            return Published() if error.index == 1 else LookFailed()  # another came first
        except StoreError:
            return LookFailed()
        return Published()

    def _own_node(self) -> Stat | None:
        """The member's node; None when there is none of this session."""
        node = self._store.exists(self._node)
        return node if node is not None and node.ephemeral_owner == self._store.session.id else None


def _topics_of(member: Member, topics: Sequence[TopicName]) -> frozenset[TopicName]:
    if member.pattern is None:
        return member.topics
    try:
        return frozenset(matching_topics(member.pattern, topics))
    except InvalidConfig as error:
        log.error("a subscription matches nothing: %s", error)
        return frozenset()


def greeting_of(member: MemberId) -> bytes:
    """What the listener of a member says first (``liveness``): its port may be another process's by now."""
    return f"{member}\n".encode()
