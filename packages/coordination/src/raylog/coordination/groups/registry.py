"""One member's side of the registries: carries out what it has decided (``group_events``) against the MetadataStore.

What makes two members agree is in the checks of each write:

* Registering checks the group's kind. Claiming and publishing check the member's own registration: its node ends with
  its session or by eviction, and nothing that was decided before is done after that.
* A claim also writes the persistent node of the offset, whose version only grows. Whoever commits, gives up or evicts
  names that version: none of these touches what another has claimed meanwhile (``groups.claims``).

What one change of membership costs grows with the members and the partitions that move: the elected one reads who is
there and writes the assignment, and the share of each member whose share has changed; the others read their shares
(``groups.view``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import assert_never

from raylog.coordination.groups.claims import GroupClaims
from raylog.coordination.groups.instances import fencing, instance_ops, removal
from raylog.coordination.groups.kinds import GroupKind, SettledKind, settle_kind
from raylog.coordination.groups.view import GroupView
from raylog.coordination.metadata import group_paths, paths
from raylog.coordination.metadata.group_events import (
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
)
from raylog.coordination.metadata.group_model import Registered as Member
from raylog.coordination.metadata.group_model import Shares
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.coordination.store.port import (
    BadVersion,
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
    WriteTooLarge,
)
from raylog.protocol.errors import FencedInstanceId
from raylog.protocol.ids import GroupId, MemberId, TimestampMs, TopicPartition
from raylog.protocol.logs import Logger

__all__ = ["GroupRegistry", "StoreEffect", "greeting_of"]

log = Logger(__name__)

StoreEffect = Register | Deregister | Look | Publish | ClaimPartition | Release | Evict

_ATTEMPTS = 3
"""As often a static member tries at once to take the place of a former one, which may commit meanwhile."""


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
        self._view = GroupView(store, group, member_id, sink)
        self.session_id = 0
        """Of the session that the registration is of; 0 while there is none."""
        self._is_back = False
        """It was registered before."""

    @property
    def elected(self) -> MemberId:
        """Who worked the shares out when this member read last who is registered; "" before that."""
        return self._view.elected

    @property
    def others(self) -> Mapping[MemberId, Member]:
        """Those whose death concerns this member (see ``groups.view``)."""
        return self._view.others

    def seems_dead(self, member: MemberId) -> None:
        """Its process seems gone: others may be gone with it, so the next look is for them, too."""
        self._view.seems_dead(member)

    def noticed(self, event: NodeEvent) -> None:
        """A watch has told something: what was read of that node is old."""
        if event.path.startswith(f"{paths.TOPIC_IDS}/"):
            self.claims.topics_may_be_gone(event.path)
        else:
            self._view.noticed(event)

    def watches_lost(self) -> None:
        """The connection was down meanwhile: all that was read is old."""
        self._view.watches_lost()
        self.claims.topics_may_be_gone()

    def of_deleted_topics(self) -> Sequence[TopicPartition]:
        """What is claimed of topics that are deleted: each is a ClaimLost. Ask again: the store may not answer."""
        try:
            deleted = self.claims.of_deleted_topics(self._sink)
        except StoreError:
            return ()
        for tp in deleted:
            log.warning("group %s: the topic of %s is deleted: it is given up", self._group, tp)
        return deleted

    def session_lost(self) -> None:
        """The session has ended, with all that the member claimed in it."""
        self.session_id = 0
        self.claims.session_lost()
        self._view.watches_lost()

    def carry_out(self, effect: StoreEffect) -> Event | None:
        """Do it, and answer the event that tells the member how that went.

        Raises InconsistentGroupProtocol and InvalidGroupId when the member cannot be one of this group, and
        FencedInstanceId when a newer member has its instance.
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
            if self._member.instance is None:
                self._note_eviction()
            settled = settle_kind(self._store, self._group, GroupKind.ACTORS)
            node = self._registered(settled)
            if node is None:
                return RegistrationFailed()
        except WriteTooLarge as error:
            log.warning("group %s: member %s waits for the end of a session: %s", self._group, self._id, error)
            return RegistrationFailed()
        except StoreError:
            return RegistrationFailed()
        self.session_id, self._is_back = node.ephemeral_owner, True
        return Registered()

    def _registered(self, settled: SettledKind) -> Stat | None:
        """Make the member's node; None where that is not done."""
        data = group_paths.encode_member(self._member, self._wall_ms())
        create = Create(self._node, data, ephemeral=True)
        if self._member.instance is None:
            try:
                self._store.multi([settled.check(self._group), create])
            except NodeExists:
                pass  # ours, if the answer to an earlier try was lost
            return self._own_node()
        for _ in range(_ATTEMPTS):
            ops = instance_ops(self._store, self._group, self._member.instance, self._id, is_back=self._is_back)
            try:
                self._store.multi([settled.check(self._group), *ops, create])
            except (NodeExists, NoNode, BadVersion):
                pass  # as above; or the former member has ended, or has claimed or committed
            if (node := self._own_node()) is not None:
                return node
        return None

    def fencing(self) -> FencedInstanceId | None:
        """What to tell the user where a newer member has this one's instance, as far as the store answers."""
        if self._member.instance is None:
            return None
        try:
            return fencing(self._store, self._group, self._member.instance, self._id)
        except StoreError:
            return None

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
                instance = self._member.instance
                also = [] if instance is None else [Delete(group_paths.instance(self._group, instance))]
                self._store.multi([Delete(self._node), *also])
        except NoNode:
            pass  # evicted
        except StoreError:
            return DeregisterFailed()
        return Deregistered()

    def _evict(self, member: MemberId) -> None:
        """All of it at once, and only if the member has claimed and committed nothing meanwhile: else it lives."""
        try:
            self._store.multi(removal(self._store, self._group, member))
        except WriteTooLarge as error:
            log.info("group %s: its session will tell of member %s: %s", self._group, member, error)
        except (StoreError, CorruptMetadata) as error:
            log.info("group %s: member %s was not evicted, its session will tell: %s", self._group, member, error)
        else:
            log.warning("group %s: the process of member %s is gone, it was evicted", self._group, member)

    # --- looking and publishing ---

    def _look(self) -> Event:
        try:
            return Looked(self._view.look())
        except StoreError:
            return LookFailed()

    def _publish(self, shares: Shares, version: int) -> Event:
        """The assignment, and what differs from the one before in the nodes of the shares.

        Where all that is too much for one write, the shares go, and the members read the whole assignment.
        """
        node, data = group_paths.assignment(self._group), group_paths.encode_assignment(shares)
        write = Create(node, data) if version < 0 else Set(node, data, version)
        try:
            there = self._store.children(node)
            try:
                self._store.multi([self.claims.registration, write, *self._changed(shares, version, there)])
            except WriteTooLarge:
                self._store.multi([self.claims.registration, write, *(Delete(f"{node}/{name}") for name in there)])
        except (NodeExists, BadVersion) as error:
            return Published() if error.index == 1 else LookFailed()  # another came first
        except WriteTooLarge:
            log.error(
                "group %s: the assignment has %d bytes, which is too large: read in more groups", self._group, len(data)
            )
            return LookFailed()
        except StoreError:
            return LookFailed()
        return Published()

    def _changed(self, shares: Shares, version: int, there: Iterable[str]) -> Iterable[Op]:
        """``there``: the names of the nodes that there are."""
        before, gone = self._view.published(version), set(there)
        for member, partitions in shares.members.items():
            node, name = group_paths.share(self._group, member), group_paths.node_name(member)
            if name not in gone:
                yield Create(node, group_paths.encode_share(shares.generation, partitions))
            elif before.get(member) != partitions:
                yield Set(node, group_paths.encode_share(shares.generation, partitions))
            gone.discard(name)
        yield from (Delete(f"{group_paths.assignment(self._group)}/{name}") for name in sorted(gone))

    def _own_node(self) -> Stat | None:
        """The member's node; None when there is none of this session."""
        node = self._store.exists(self._node)
        return node if node is not None and node.ephemeral_owner == self._store.session.id else None


def greeting_of(member: MemberId) -> bytes:
    """What the listener of a member says first (``liveness``): its port may be another process's by now."""
    return f"{member}\n".encode()
