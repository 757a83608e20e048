"""What a member of a group of actors reads of the registries, and what it need not read.

The *elected* member, the one whose id is the lowest, reads who is registered, what the newcomers want, and the
assignment, each time one of these changes. Every other member reads its own share, and watches the one *before* it: the
member whose id is the next lower one. Only when that is gone, or seems dead, it reads who is registered, to learn
whether it is the elected one now, or who is before it. So one change of membership costs each of the others a few bytes
or nothing, and those next to it a list of names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from raylog.coordination.groups.deletion import is_registration
from raylog.coordination.metadata import group_paths, paths
from raylog.coordination.metadata.group_events import View
from raylog.coordination.metadata.group_model import Registered, Shares
from raylog.coordination.metadata.topic_patterns import matching_topics
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.coordination.store.port import EventSink, MetadataStore, NodeEvent
from raylog.coordination.store.unreadable import readable, skipping, tell
from raylog.protocol.errors import InvalidConfig
from raylog.protocol.ids import Generation, GroupId, MemberId, TopicName, TopicPartition
from raylog.protocol.logs import Logger

__all__ = ["GroupView"]

log = Logger(__name__)

_NOT_SEEN = MemberId("")


class GroupView:
    """Of one member. One thread calls it; ``sink`` gets the events of the watches."""

    def __init__(self, store: MetadataStore, group: GroupId, member_id: MemberId, sink: EventSink) -> None:
        self._store = store
        self._group = group
        self._id = member_id
        self._sink = sink
        self._before: MemberId | None = None
        """The member before this one, as the list of names had it; None: read the names."""
        self._known: dict[MemberId, Registered] = {}
        """What others registered, read once: an id is not used again for something else, but by who was evicted."""
        self._foreign: set[MemberId] = set()
        """Whose nodes are no registrations, or cannot be read: no member of the group can be called so."""
        self._dead: set[MemberId] = set()
        """Those registered whose processes seem gone."""
        self._counts: dict[TopicName, int] = {}
        """Of partitions; each was read with a watch that has not told anything yet."""
        self._whole = -1, Shares(Generation(-1), {})
        """The assignment as it was read last, with the version of its node."""
        self.elected = _NOT_SEEN
        """Who worked the shares out when the names were read last."""

    @property
    def others(self) -> Mapping[MemberId, Registered]:
        """Those whose death concerns this member, when it last looked: the one before it; to the elected one, all."""
        return {member: found for member, found in self._known.items() if member != self._id}

    def seems_dead(self, member: MemberId) -> None:
        """Read of it anew, and look for the one before it as well: that one may be dead, too."""
        self._dead.add(member)
        self._known.pop(member, None)

    def noticed(self, event: NodeEvent) -> None:
        """A watch has told something: what was read of that node is old."""
        parent, _, name = event.path.rpartition("/")
        if parent == paths.BROKER_TOPICS:
            self._counts.pop(TopicName(name), None)

    def watches_lost(self) -> None:
        """The connection was down meanwhile, or the session has ended: all that was read is old."""
        self._counts.clear()
        self._foreign.clear()
        self._before = None

    def published(self, version: int) -> Mapping[MemberId, tuple[TopicPartition, ...]]:
        """The shares in the assignment at this version; none when another was read last."""
        return self._whole[1].members if self._whole[0] == version else {}

    def look(self) -> View:
        """Raises StoreError."""
        if self._before is not None and not self._dead:
            view = self._from_its_place(self._before)
            if view is not None:
                return view
        return self._from_all_names()

    # --- as one of many ---

    def _from_its_place(self, before: MemberId) -> View | None:
        """Its own share; None when the member before it is not registered any more, or it is not itself."""
        nodes = [group_paths.member(self._group, member) for member in (before, self._id)]
        if any(self._store.exists(node, self._sink) is None for node in nodes):
            return None
        return View(self._own_share(), -1, dict.fromkeys((before, self._id), frozenset()), {}, is_whole=False)

    def _own_share(self) -> Shares | None:
        node = group_paths.share(self._group, self._id)
        found = self._store.get(node, self._sink)
        if found is not None:
            try:
                return group_paths.decode_share(node, self._id, found.data)
            except CorruptMetadata as error:
                log.error("group %s: %s: the whole assignment is read instead", self._group, error)
        return self._assignment()[1]

    # --- as the elected one, or to find the place ---

    def _from_all_names(self) -> View:
        version, shares = self._assignment()  # before the registries: see group
        names = self._store.children(group_paths.members(self._group), self._sink)
        ids = self._registered(names)
        self._before = None
        self._dead &= set(ids)
        self._foreign &= set(ids)
        lower = self._lower(ids)
        is_elected = self._id in ids and not lower
        self.elected = self._id if is_elected else min(ids, default=_NOT_SEEN)
        if not is_elected:
            if self._id in ids:  # the watches on names and assignment tell what happens until the next look
                self._before = lower[0]
            members = [member for member in ids if member not in self._foreign]
            return View(shares, version, dict.fromkeys(members, frozenset()), {})
        self._read_members(ids)
        wanted = self._wanted()
        return View(shares, version, wanted, self._count(frozenset[TopicName]().union(*wanted.values())))

    def _registered(self, names: Iterable[str]) -> list[MemberId]:
        """Those of these names, in order, that nodes of members have."""
        ids = []
        for name in names:
            with skipping():
                ids.append(group_paths.member_named(name, group_paths.members(self._group)))
        return sorted(ids)

    def _lower(self, ids: Sequence[MemberId]) -> list[MemberId]:
        """The one before; if that seems dead, also the one before it, and so on down to the elected one. What stands
        there and is no member is passed over.
        """
        found: list[MemberId] = []
        for member in reversed([member for member in ids if member < self._id]):
            self._read_members([*found, member])
            if member in self._foreign:
                continue
            found.append(member)
            if member not in self._dead:
                break
        return found

    def _assignment(self) -> tuple[int, Shares | None]:
        """The version of its node, and what it says; -1 and None while there is none."""
        found = self._store.get(group_paths.assignment(self._group), self._sink)
        if found is None:
            return -1, None
        try:
            shares = group_paths.decode_assignment(self._group, found.data)
        except CorruptMetadata as error:  # the elected one writes it anew; each write raised both numbers by one
            log.error("group %s: %s: it is written anew", self._group, error)
            shares = Shares(Generation(found.version), {})
        self._whole = found.version, shares
        return self._whole

    def _read_members(self, ids: Iterable[MemberId]) -> None:
        """Know of these what they registered; who is gone meanwhile is left out."""
        new = [member for member in ids if member not in self._known and member not in self._foreign]
        self._known = {member: self._known[member] for member in ids if member in self._known}
        nodes = [group_paths.member(self._group, member) for member in new]
        read = (self._store.get_each(nodes), self._store.exists_many(nodes)) if nodes else ((), ())
        for member, node, found, stat in zip(new, nodes, *read, strict=True):
            if found is None or stat is None:
                continue
            try:
                if is_registration(node, stat):
                    self._known[member] = group_paths.decode_member(node, readable(found).data)
                else:
                    self._foreign.add(member)
            except CorruptMetadata as error:
                tell(error)
                self._foreign.add(member)

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


def _topics_of(member: Registered, topics: Sequence[TopicName]) -> frozenset[TopicName]:
    if member.pattern is None:
        return member.topics
    try:
        return frozenset(matching_topics(member.pattern, topics))
    except InvalidConfig as error:
        log.error("a subscription matches nothing: %s", error)
        return frozenset()
