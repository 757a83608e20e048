"""Claims on a partition under any order of what members, sessions, tools and the network do, and of its topic's lives.

What is committed is always what its only owner, or a tool, wrote last for the topic that there is now; who has lost its
claim, or has one on a former topic, commits nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kit.topics import drop_topic, forget_offsets, put_topic
from raylog.coordination.groups.kinds import GroupKind, SettledKind, settle_kind, vacancy
from raylog.coordination.groups.offsets import Claim, CommittedOffset, RegistryOffsetStore
from raylog.coordination.membership.registration import ensure_cluster
from raylog.coordination.metadata import group_paths
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import Check, Create, Delete, StoreError, StoreUnavailable
from raylog.protocol.errors import UnknownMemberId
from raylog.protocol.ids import (
    NO_MEMBER,
    GroupId,
    LeaderEpoch,
    MemberId,
    Offset,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)

GROUP = GroupId("readers")
TP = TopicPartition(TopicName("flights"), PartitionIndex(0))
MEMBERS = 3


@dataclass
class Member:
    """One process: its session, and what it believes."""

    store: MemoryStore
    offsets: RegistryOffsetStore
    id: MemberId = NO_MEMBER
    """Of its last registration; each has one of its own."""
    claim: Claim | None = None

    @property
    def guard(self) -> Check:
        return Check(group_paths.member(GROUP, self.id), 0)


class Claims(RuleBasedStateMachine):
    """The model knows who owns the partition, what is committed, and whether the owner's claim is up to date."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = MemoryTree()
        self.outside = MemoryStore(self.tree)
        self.outside.start()
        ensure_cluster(self.outside)
        self.topic_id: TopicId | None = put_topic(self.outside, TP.topic)
        self.topics = [self.topic_id]
        """All that there have been."""
        self.tool = RegistryOffsetStore(self.outside)
        self.kind: SettledKind = settle_kind(self.outside, GROUP, GroupKind.ACTORS)
        self.members: list[Member] = []
        self.registered: set[int] = set()
        self.owner: int | None = None
        self.is_current = False
        """The owner's claim has the version that the next commit must name."""
        self.committed: CommittedOffset | None = None
        self.count = 0

    @initialize()
    def start(self) -> None:
        for _ in range(MEMBERS):
            store = MemoryStore(self.tree)
            store.start()
            self.members.append(Member(store, RegistryOffsetStore(store)))

    def next_offset(self) -> CommittedOffset:
        self.count += 1
        return CommittedOffset(Offset(self.count), LeaderEpoch(1), "x")

    who = st.integers(0, MEMBERS - 1)

    # --- members ---

    @rule(who=who)
    def register(self, who: int) -> None:
        if who in self.registered:
            return
        self.count += 1
        member = self.members[who]
        member.id = MemberId(f"{who}-{self.count}")
        member.store.multi([self.kind.check(GROUP), Create(member.guard.path, ephemeral=True)])
        self.registered.add(who)

    @rule(who=who)
    def claim(self, who: int) -> None:
        member = self.members[who]
        if not member.id:
            return
        may = self.owner in (None, who) and who in self.registered and self.topic_id is not None
        try:
            claim = member.offsets.claim(GROUP, TP, member.id, [member.guard])
        except StoreError:
            assert not may
            return
        assert may
        assert claim.topic_id == self.topic_id
        assert claim.committed == self.committed
        member.claim, self.owner, self.is_current = claim, who, True

    @rule(who=who, answer_is_lost=st.booleans())
    def commit(self, who: int, answer_is_lost: bool) -> None:
        member = self.members[who]
        if member.claim is None:
            return
        offset = self.next_offset()
        is_of_topic = member.claim.topic_id == self.topic_id
        may = who == self.owner and who in self.registered and self.is_current and is_of_topic
        if answer_is_lost:
            member.store.lose_next_answer()
        try:
            [member.claim] = member.offsets.commit(member.offsets.stage([(member.claim, offset)]))
        except StoreUnavailable:
            assert answer_is_lost
            self.is_current = self.is_current and not may
        except StoreError:
            assert not may
            return
        else:
            assert may
        if may:
            self.committed = offset

    @rule(who=who)
    def renew(self, who: int) -> None:
        member = self.members[who]
        if member.claim is None:
            return
        try:
            member.claim = member.offsets.renew(member.claim)
        except StoreError:
            assert who != self.owner or (not self.has_node() and member.claim.topic_id != self.topic_id)
            self.is_current = self.is_current and who != self.owner
            return
        assert who == self.owner
        self.is_current = True

    @rule(who=who, with_position=st.booleans())
    def release(self, who: int, with_position: bool) -> None:
        member = self.members[who]
        if member.claim is None:
            return
        position = self.next_offset() if with_position else None
        is_of_topic = position is None or member.claim.topic_id == self.topic_id
        try:
            member.offsets.release(member.claim, position)
        except StoreError:
            assert who != self.owner or not self.is_current or not is_of_topic
            return
        assert is_of_topic
        assert who == self.owner
        assert self.is_current
        self.owner = None
        self.committed = position or self.committed

    @rule(who=who)
    def disown(self, who: int) -> None:
        member = self.members[who]
        if member.id:
            assert member.offsets.disown(GROUP, TP, member.id) == (who == self.owner)
            self.owner = None if who == self.owner else self.owner

    # --- the world ---

    def has_node(self) -> bool:
        return self.outside.exists(group_paths.offset(GROUP, TP)) is not None

    @rule()
    def topic_is_deleted(self) -> None:
        if self.topic_id is not None:
            drop_topic(self.outside, TP.topic)
            self.topic_id, self.committed = None, None

    @rule()
    def topic_is_made(self) -> None:
        if self.topic_id is None:
            self.topic_id = put_topic(self.outside, TP.topic)
            self.topics.append(self.topic_id)

    @rule()
    def deleted_topics_are_cleared_away(self) -> None:
        """What is claimed meanwhile may lose its node, so that the owner renews its claim."""
        self.tool.forget_deleted_topics(GROUP, [])
        self.is_current = self.is_current and self.has_node()

    @rule(who=who)
    def session_ends(self, who: int) -> None:
        """The member believes in its claim on, and has another session at once."""
        member = self.members[who]
        self.tree.expire(member.store.session.id)
        self.gone(who)

    @rule(who=who)
    def evict(self, who: int) -> None:
        """Another member takes this one for dead."""
        if who not in self.registered:
            return
        ops = [Delete(self.members[who].guard.path)]
        if self.owner == who:
            ops.append(Delete(group_paths.owner(GROUP, TP)))
        self.outside.multi(ops)
        self.gone(who)

    def gone(self, who: int) -> None:
        self.registered.discard(who)
        if self.owner == who:
            self.owner = None

    @rule()
    def old_tool_writes(self) -> None:
        self.count += 1
        node = group_paths.offset(GROUP, TP)
        if self.outside.exists(node) is not None:
            self.outside.set(node, b"%d" % self.count)
            self.is_current = False
            self.committed = None if self.topic_id is None else CommittedOffset(Offset(self.count))

    @rule(of_former=st.booleans())
    def tool_commits(self, of_former: bool) -> None:
        """Allowed while nobody is registered."""
        offset, topic = self.next_offset(), self.topics[0 if of_former else -1]
        try:
            refused = self.tool.write(GROUP, {TP: offset}, vacancy(self.outside, GROUP, self.kind), {TP.topic: topic})
        except UnknownMemberId:
            assert self.registered
            return
        assert not self.registered
        assert bool(refused) == (topic != self.topic_id)
        if not refused:
            self.committed, self.is_current = offset, False

    @precondition(lambda self: not self.registered)
    @rule()
    def offsets_are_forgotten(self) -> None:
        forget_offsets(self.tool, GROUP, [TP], vacancy(self.outside, GROUP, self.kind))
        self.committed, self.is_current = None, False

    @invariant()
    def what_is_committed_is_what_was_written_last(self) -> None:
        assert self.tool.fetch(GROUP) == ({} if self.committed is None else {TP: self.committed})

    def teardown(self) -> None:
        for member in self.members:
            member.store.close()
        self.outside.close()


TestClaims = Claims.TestCase
TestClaims.settings = settings(stateful_step_count=40)
