"""Committed offsets over both stores: with claims or guards, beside tools of the ZooKeeper era; kinds; deletion."""

from __future__ import annotations

import pytest

from kit.stores import Contended, Interrupted, OpenStore
from kit.topics import drop_topic, forget_offsets, put_topic, replace_topic
from raylog.coordination.groups.claims import GroupClaims
from raylog.coordination.groups.kinds import GroupKind, read_kind, settle_kind, vacancy
from raylog.coordination.groups.nodes import delete_group, delete_if_bare, exists, group_ids
from raylog.coordination.groups.offset_nodes import read_stored
from raylog.coordination.groups.offsets import CommittedOffset, RegistryOffsetStore
from raylog.coordination.membership.registration import ensure_cluster
from raylog.coordination.metadata import group_paths, paths
from raylog.coordination.metadata.group_events import Claimed
from raylog.coordination.metadata.topic_ids import TopicGone
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.coordination.store.port import (
    BadVersion,
    Check,
    Create,
    Delete,
    MetadataStore,
    NodeExists,
    NoNode,
    NotEmpty,
)
from raylog.protocol.errors import InconsistentGroupProtocol, InvalidGroupId, NonEmptyGroup, UnknownMemberId
from raylog.protocol.ids import (
    NO_TOPIC_ID,
    BrokerId,
    GroupId,
    LeaderEpoch,
    MemberId,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)

pytestmark = pytest.mark.system

GROUP = GroupId("team a/billing")
ONE, TWO = MemberId("one"), MemberId("two")
FLIGHTS = TopicName("flights")


def tp(index: int, topic: str = "flights") -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(index))


def at(offset: int, metadata: str = "") -> CommittedOffset:
    return CommittedOffset(Offset(offset), LeaderEpoch(3), metadata, TimestampMs(1_000))


@pytest.fixture
def offsets(store: MetadataStore) -> RegistryOffsetStore:
    ensure_cluster(store)
    put_topic(store, "flights", 300)
    put_topic(store, "other", 3)
    settle_kind(store, GROUP, GroupKind.CLIENTS)
    return RegistryOffsetStore(store)


# --- without claims


def test_all_that_was_committed_is_found_again(offsets: RegistryOffsetStore) -> None:
    committed = {tp(0): at(5, "beside it"), tp(11): at(0), tp(2, "other"): at(9)}
    assert offsets.write(GROUP, committed, []) == {}
    assert offsets.fetch(GROUP) == committed
    assert offsets.fetch(GROUP, [tp(11), tp(12)]) == {tp(11): at(0)}
    assert offsets.fetch(GroupId("nobody")) == {}
    assert offsets.write(GROUP, {tp(0): at(6)}, []) == {}
    assert offsets.fetch(GROUP, [tp(0)]) == {tp(0): at(6)}


def test_a_tool_of_the_zookeeper_era_reads_and_writes_the_same_number(
    offsets: RegistryOffsetStore, store: MetadataStore
) -> None:
    offsets.write(GROUP, {tp(0): at(5, "beside it")}, [])
    node = group_paths.offset(GROUP, tp(0))
    found = store.get(node)
    assert found is not None
    assert found.data == b"5"
    store.set(node, b"7")
    assert offsets.fetch(GROUP) == {tp(0): CommittedOffset(Offset(7))}
    store.create(group_paths.offset(GROUP, tp(1)), b"3")
    assert offsets.fetch(GROUP)[tp(1)] == CommittedOffset(Offset(3))
    assert offsets.write(GROUP, {tp(1): at(4)}, []) == {}
    assert offsets.fetch(GROUP)[tp(1)] == at(4)


def test_a_guard_that_fails_lets_nothing_be_written_or_deleted(
    offsets: RegistryOffsetStore, store: MetadataStore
) -> None:
    offsets.write(GROUP, {tp(0): at(5)}, [])
    store.create("/guard")
    held = Check("/guard", 0)
    assert offsets.write(GROUP, {tp(0): at(6)}, [held]) == {}
    store.set("/guard", b"taken over")
    with pytest.raises(BadVersion):
        offsets.write(GROUP, {tp(0): at(7), tp(1): at(1)}, [held])
    with pytest.raises(BadVersion):
        forget_offsets(offsets, GROUP, [tp(0)], [held])
    assert offsets.fetch(GROUP) == {tp(0): at(6)}


def test_an_offset_that_cannot_be_written_holds_up_no_other(offsets: RegistryOffsetStore, store: MetadataStore) -> None:
    """Its place is taken by a node that can have no children, and by one whose sibling cannot be made."""
    store.create(group_paths.offsets_of_topic(GROUP, TopicName("taken")), ephemeral=True, parents=True)
    refused = offsets.write(GROUP, {tp(0, "taken"): at(1), tp(0): at(2), tp(3, "taken"): at(3), tp(4): at(4)}, [])
    assert refused.keys() == {tp(0, "taken"), tp(3, "taken")}
    assert offsets.fetch(GROUP) == {tp(0): at(2), tp(4): at(4)}


def test_more_than_a_multi_takes_is_written_in_parts(offsets: RegistryOffsetStore) -> None:
    committed = {tp(index): at(index, "x" * 4096) for index in range(300)}
    assert offsets.write(GROUP, committed, []) == {}
    assert offsets.fetch(GROUP) == committed
    forget_offsets(offsets, GROUP, committed, [])
    assert offsets.fetch(GROUP) == {}


def test_deleting_an_offset_twice_is_no_error(offsets: RegistryOffsetStore, store: MetadataStore) -> None:
    offsets.write(GROUP, {tp(0): at(5), tp(1): at(6)}, [])
    for _ in range(2):
        forget_offsets(offsets, GROUP, [tp(0)], [])
        assert offsets.fetch(GROUP) == {tp(1): at(6)}
    forget_offsets(offsets, GROUP, [tp(1)], [])
    assert store.children(group_paths.offsets(GROUP)) == []
    assert store.children(group_paths.details(GROUP)) == []


def test_a_commit_is_forgotten_only_as_it_was_seen(offsets: RegistryOffsetStore, store: MetadataStore) -> None:
    offsets.write(GROUP, {tp(0): at(5), tp(1): at(6)}, [])
    seen = offsets.look(GROUP)
    offsets.write(GROUP, {tp(0): at(7)}, [])
    with pytest.raises(BadVersion):
        offsets.forget(GROUP, seen, [tp(0), tp(1)], [])
    assert offsets.fetch(GROUP) == {tp(0): at(7), tp(1): at(6)}
    offsets.forget(GROUP, seen, [tp(1)], [])
    assert offsets.fetch(GROUP) == {tp(0): at(7)}
    store.create("/guard")
    store.set("/guard", b"taken over")
    with pytest.raises(BadVersion):
        forget_offsets(offsets, GROUP, [tp(0)], [Check("/guard", 0)])
    forget_offsets(offsets, GROUP, [tp(0)], [Check("/guard", 1)])
    assert offsets.fetch(GROUP) == {}


def test_offset_made_anew_with_the_same_version_is_not_forgotten(offsets: RegistryOffsetStore) -> None:
    offsets.write(GROUP, {tp(0): at(5)}, [])
    seen = offsets.look(GROUP)
    forget_offsets(offsets, GROUP, [tp(0)], [])  # somebody else, who sees the same
    offsets.write(GROUP, {tp(0): at(6)}, [])
    assert [found and found.version for found in offsets.look(GROUP).nodes.values()] == [0, 0]
    with pytest.raises(BadVersion):
        offsets.forget(GROUP, seen, [tp(0)], [])
    assert offsets.fetch(GROUP) == {tp(0): at(6)}


def test_a_commit_at_the_moment_of_forgetting_stays() -> None:
    tree = MemoryTree()
    with Contended(tree) as store, MemoryStore(tree) as outside:
        put_topic(outside, "flights")
        settle_kind(outside, GROUP, GroupKind.CLIENTS)
        offsets = RegistryOffsetStore(store)
        offsets.write(GROUP, {tp(0): at(5)}, [])
        store.happens = lambda number: outside.set(group_paths.offset(GROUP, tp(0)), b"8")
        with pytest.raises(BadVersion):
            forget_offsets(offsets, GROUP, [tp(0)], [])
        assert offsets.fetch(GROUP) == {tp(0): CommittedOffset(Offset(8))}


def test_a_commit_between_the_reads_of_its_two_nodes_is_read_whole() -> None:
    tree = MemoryTree()
    with Interrupted(tree) as store, MemoryStore(tree) as outside:
        put_topic(outside, "flights")
        settle_kind(outside, GROUP, GroupKind.CLIENTS)
        offsets, committer = RegistryOffsetStore(store), RegistryOffsetStore(outside)
        committer.write(GROUP, {tp(0): at(5, "old")}, [])
        store.after, store.happens = 1, lambda: committer.write(GROUP, {tp(0): at(6, "new")}, [])
        assert offsets.fetch(GROUP, [tp(0)]) == {tp(0): at(6, "new")}


@pytest.mark.parametrize("name", ["../../../victim", "..", "", "a/b", "%2E"])
def test_a_name_that_no_topic_can_have_reaches_no_node_but_its_own(
    offsets: RegistryOffsetStore, store: MetadataStore, name: str
) -> None:
    """Clients may ask for the offsets of any name, and have them deleted."""
    others = ("/victim/0", group_paths.offset(GROUP, tp(0)), f"{group_paths.consumer(GROUP)}/0")
    for node in others:
        store.create(node, b"7", parents=True)
    replace_topic(store, "flights")
    hostile = tp(0, name)
    assert offsets.fetch(GROUP, [hostile]) == {}
    forget_offsets(offsets, GROUP, [hostile], [])
    assert offsets.write(GROUP, {hostile: at(1)}, []) == {}
    assert offsets.fetch(GROUP) == {}, "there is no such topic; and what an old tool wrote is older than the topic"
    assert read_stored(store, GROUP, [hostile])[0][hostile].committed == at(1)
    forget_offsets(offsets, GROUP, [hostile], [])
    assert [store.get(node) for node in others] == [(b"7", 0)] * 3


# --- with claims


def registered(store: MetadataStore, member: MemberId) -> Check:
    store.create(group_paths.member(GROUP, member), ephemeral=True, parents=True)
    return Check(group_paths.member(GROUP, member), 0)


def test_a_claim_goes_on_where_the_last_owner_stopped(offsets: RegistryOffsetStore) -> None:
    first = offsets.claim(GROUP, tp(0), ONE)
    assert first.committed is None
    assert offsets.fetch(GROUP) == {}
    [first] = offsets.commit(offsets.stage([(first, at(5, "so far"))]))
    assert first.committed == at(5, "so far")
    with pytest.raises(NodeExists):
        offsets.claim(GROUP, tp(0), TWO)
    offsets.release(first, at(8))
    second = offsets.claim(GROUP, tp(0), TWO)
    assert second.committed == at(8)
    with pytest.raises(BadVersion):
        offsets.commit(offsets.stage([(first, at(9))]))
    with pytest.raises(BadVersion):
        offsets.release(first, at(9))
    assert offsets.fetch(GROUP) == {tp(0): at(8)}


def test_a_member_that_is_registered_no_more_neither_claims_nor_commits(
    offsets: RegistryOffsetStore, store: MetadataStore
) -> None:
    """As when its session ended and the store has opened another one for it."""
    guard = registered(store, ONE)
    claim = offsets.claim(GROUP, tp(0), ONE, [guard])
    store.delete(guard.path)
    with pytest.raises(NoNode) as refused:
        offsets.claim(GROUP, tp(1), ONE, [guard])
    assert refused.value.index == 0
    for act in (
        lambda: offsets.commit(offsets.stage([(claim, at(1))])),
        lambda: offsets.release(claim, at(1)),
    ):
        with pytest.raises(BadVersion):
            act()
    assert offsets.fetch(GROUP) == {}


def test_an_owner_that_did_not_hear_of_its_commit_renews_its_claim(open_store: OpenStore) -> None:
    store = open_store()
    ensure_cluster(store)
    put_topic(store, "flights")
    settle_kind(store, GROUP, GroupKind.CLIENTS)
    offsets, other = RegistryOffsetStore(store), RegistryOffsetStore(open_store())
    claim = offsets.claim(GROUP, tp(0), ONE)
    offsets.commit(offsets.stage([(claim, at(4))]))  # and the answer is lost
    with pytest.raises(BadVersion):
        offsets.commit(offsets.stage([(claim, at(5))]))
    claim = offsets.renew(claim)
    [claim] = offsets.commit(offsets.stage([(claim, at(5))]))
    with pytest.raises(BadVersion):
        other.renew(claim)
    offsets.release(claim)
    other.claim(GROUP, tp(0), TWO)
    with pytest.raises(BadVersion):
        offsets.renew(claim)


def test_an_owner_commits_more_than_a_multi_takes_in_parts(offsets: RegistryOffsetStore, store: MetadataStore) -> None:
    registered(store, ONE)
    claims = GroupClaims(store, GROUP, ONE)
    much = {tp(index): CommittedOffset(Offset(index), metadata="x" * 4096) for index in range(300)}
    assert [claims.claim(each) for each in much] == list(map(Claimed, much))
    claims.commit(much)
    assert offsets.fetch(GROUP) == much


def test_a_claim_that_was_given_up_commits_nothing(offsets: RegistryOffsetStore) -> None:
    claim = offsets.claim(GROUP, tp(0), ONE)
    offsets.release(claim)
    with pytest.raises(BadVersion):
        offsets.commit(offsets.stage([(claim, at(7))]))
    with pytest.raises(BadVersion):
        offsets.release(claim)
    assert offsets.fetch(GROUP) == {}


def test_a_claim_ends_with_its_registration_even_if_its_version_comes_again(
    offsets: RegistryOffsetStore, store: MetadataStore
) -> None:
    """The offset's node was deleted and made anew, and the member that claimed it then has registered again."""
    old_guard = registered(store, ONE)
    old = offsets.claim(GROUP, tp(0), ONE, [old_guard])
    store.multi([Delete(old_guard.path), Delete(group_paths.owner(GROUP, tp(0)))])  # taken for dead
    forget_offsets(offsets, GROUP, [tp(0)], [])
    registered(store, MemberId("one again"))
    new = offsets.claim(GROUP, tp(0), TWO, [registered(store, TWO)])
    assert new.version == old.version
    for act in (lambda: offsets.commit(offsets.stage([(old, at(1))])), lambda: offsets.release(old)):
        with pytest.raises(BadVersion):
            act()
    offsets.commit(offsets.stage([(new, at(2))]))
    assert offsets.fetch(GROUP) == {tp(0): at(2)}


def test_who_forgets_the_offsets_fences_the_owner(offsets: RegistryOffsetStore) -> None:
    claim = offsets.claim(GROUP, tp(0), ONE)
    forget_offsets(offsets, GROUP, [tp(0)], [])
    with pytest.raises(BadVersion):
        offsets.commit(offsets.stage([(claim, at(1))]))


# --- kinds


def test_an_empty_group_changes_its_kind_and_fences_who_acted_by_the_old_one(store: MetadataStore) -> None:
    ensure_cluster(store)
    assert read_kind(store, GROUP) is None
    clients = settle_kind(store, GROUP, GroupKind.CLIENTS)
    assert settle_kind(store, GROUP, GroupKind.CLIENTS) == clients == read_kind(store, GROUP)
    store.create(group_paths.state(GROUP), b'{"members": []}')
    actors = settle_kind(store, GROUP, GroupKind.ACTORS)
    assert (actors.kind, actors.version) > (GroupKind.ACTORS, clients.version)
    with pytest.raises(BadVersion):
        store.multi([clients.check(GROUP), Create("/by-the-old-kind")])
    with pytest.raises(BadVersion):
        store.set(group_paths.state(GROUP), b"of the former coordinator", 0)
    back = settle_kind(store, GROUP, GroupKind.CLIENTS)
    with pytest.raises(BadVersion):
        store.multi([actors.check(GROUP), Create(group_paths.member(GROUP, ONE), ephemeral=True)])
    assert back.version > actors.version


def test_a_group_with_members_keeps_its_kind(store: MetadataStore) -> None:
    ensure_cluster(store)
    settle_kind(store, GROUP, GroupKind.ACTORS)
    store.create(group_paths.member(GROUP, ONE), ephemeral=True)
    with pytest.raises(InconsistentGroupProtocol, match=r"team a/billing.*actors"):
        settle_kind(store, GROUP, GroupKind.CLIENTS)
    other = GroupId("other")
    settle_kind(store, other, GroupKind.CLIENTS)
    store.create(group_paths.state(other), b'{"members": [{"id": "m"}]}')
    with pytest.raises(InconsistentGroupProtocol, match=r"other.*clients"):
        settle_kind(store, other, GroupKind.ACTORS)
    with pytest.raises(InvalidGroupId):
        settle_kind(store, GroupId(""), GroupKind.ACTORS)


def test_offsets_of_a_group_of_actors_are_set_from_outside_only_while_nobody_is_in_it(
    offsets: RegistryOffsetStore, store: MetadataStore
) -> None:
    settled = settle_kind(store, GROUP, GroupKind.ACTORS)
    guards = vacancy(store, GROUP, settled)
    assert offsets.write(GROUP, {tp(0): at(1)}, guards) == {}
    registered(store, ONE)
    with pytest.raises(NotEmpty):
        offsets.write(GROUP, {tp(0): at(2)}, guards)
    with pytest.raises(UnknownMemberId, match="members"):
        vacancy(store, GROUP, settled)
    assert offsets.fetch(GROUP) == {tp(0): at(1)}


# --- whole groups


def test_a_group_is_forgotten_whole(offsets: RegistryOffsetStore, store: MetadataStore) -> None:
    settled = settle_kind(store, GROUP, GroupKind.ACTORS)
    registered(store, ONE)
    offsets.release(offsets.claim(GROUP, tp(0), ONE), at(3))
    store.create(group_paths.assignment(GROUP), b"{}")
    with pytest.raises(NonEmptyGroup, match="in use"):
        delete_group(store, GROUP, [settled.check(GROUP)])
    store.delete(group_paths.member(GROUP, ONE))
    offsets.write(GROUP, {tp(1, "other"): at(4)}, [])
    settle_kind(store, GroupId("another"), GroupKind.CLIENTS)
    offsets.write(GroupId("another"), {tp(1): at(4)}, [])
    assert exists(store, GROUP)
    assert group_ids(store) == ["another", GROUP]
    delete_group(store, GROUP, [settled.check(GROUP)])
    assert not exists(store, GROUP)
    assert group_ids(store) == ["another"]
    delete_group(store, GROUP, [])


def test_a_group_that_is_owned_is_not_forgotten(offsets: RegistryOffsetStore, store: MetadataStore) -> None:
    settle_kind(store, GROUP, GroupKind.ACTORS)
    offsets.claim(GROUP, tp(0), ONE)
    with pytest.raises(NonEmptyGroup):
        delete_group(store, GROUP, [])


def test_who_is_not_in_charge_any_more_forgets_no_group(offsets: RegistryOffsetStore, store: MetadataStore) -> None:
    settled = settle_kind(store, GROUP, GroupKind.CLIENTS)
    offsets.write(GROUP, {tp(0): at(3)}, [])
    settle_kind(store, GROUP, GroupKind.ACTORS)
    with pytest.raises(BadVersion):
        delete_group(store, GROUP, [settled.check(GROUP)])
    assert offsets.fetch(GROUP) == {tp(0): at(3)}


def test_a_bare_group_is_forgotten_and_one_with_offsets_is_not(
    offsets: RegistryOffsetStore, store: MetadataStore
) -> None:
    settled = settle_kind(store, GROUP, GroupKind.ACTORS)
    offsets.write(GROUP, {tp(0): at(3)}, [])
    assert not delete_if_bare(store, GROUP, [settled.check(GROUP)])
    forget_offsets(offsets, GROUP, [tp(0)], [])
    member = registered(store, ONE)
    assert not delete_if_bare(store, GROUP, [settled.check(GROUP)])
    store.delete(member.path)
    assert delete_if_bare(store, GROUP, [settled.check(GROUP)])
    assert not exists(store, GROUP)


def test_a_group_made_anew_as_the_other_kind_is_not_taken_for_the_old_one(store: MetadataStore) -> None:
    ensure_cluster(store)
    for kind, other in ((GroupKind.ACTORS, GroupKind.CLIENTS), (GroupKind.CLIENTS, GroupKind.ACTORS)):
        old = settle_kind(store, GROUP, kind)
        delete_group(store, GROUP, [])
        settle_kind(store, GROUP, other)
        with pytest.raises(BadVersion):
            store.multi([old.check(GROUP)])
        delete_group(store, GROUP, [])


# --- topics that are deleted and made anew


@pytest.fixture
def topic_id(offsets: RegistryOffsetStore, store: MetadataStore) -> TopicId:
    """Of flights, whose offsets are 5 and 6."""
    topic_id = put_topic(store, "flights", 300)
    assert offsets.write(GROUP, {tp(0): at(5), tp(1): at(6)}, [], {FLIGHTS: topic_id}) == {}
    return topic_id


def test_offset_of_replaced_topic_counts_as_none(
    offsets: RegistryOffsetStore, store: MetadataStore, topic_id: TopicId
) -> None:
    assert offsets.fetch(GROUP) == {tp(0): at(5), tp(1): at(6)}
    drop_topic(store, "flights")
    assert offsets.fetch(GROUP) == {}
    again = put_topic(store, "flights", 300)
    assert offsets.fetch(GROUP) == {}
    assert offsets.claim(GROUP, tp(1), ONE).committed is None
    assert offsets.write(GROUP, {tp(0): at(1)}, [], {FLIGHTS: again}) == {}
    assert offsets.fetch(GROUP) == {tp(0): at(1)}


def test_number_of_old_tool_counts_for_topic_it_was_written_after(
    offsets: RegistryOffsetStore, store: MetadataStore, topic_id: TopicId
) -> None:
    node = group_paths.offset(GROUP, tp(0))
    store.set(node, b"7")
    assert offsets.fetch(GROUP, [tp(0)]) == {tp(0): CommittedOffset(Offset(7))}
    replace_topic(store, "flights")
    assert offsets.fetch(GROUP, [tp(0)]) == {}
    store.set(node, b"8")
    assert offsets.fetch(GROUP, [tp(0)]) == {tp(0): CommittedOffset(Offset(8))}
    claim = offsets.claim(GROUP, tp(0), ONE)
    assert claim.committed == CommittedOffset(Offset(8))
    offsets.release(claim)
    replace_topic(store, "flights")
    assert offsets.claim(GROUP, tp(0), ONE).committed is None
    assert offsets.fetch(GROUP, [tp(0)]) == {}


@pytest.mark.parametrize("give_up", ["release", "disown"])
def test_number_of_old_tool_is_not_of_topic_made_under_its_owner(
    offsets: RegistryOffsetStore, store: MetadataStore, topic_id: TopicId, give_up: str
) -> None:
    """Giving up writes the number as it is, which is a newer write than the topic."""
    store.set(group_paths.offset(GROUP, tp(0)), b"500")
    claim = offsets.claim(GROUP, tp(0), ONE)
    assert claim.committed == CommittedOffset(Offset(500))
    assert offsets.renew(claim) == claim
    replace_topic(store, "flights")
    if give_up == "release":
        offsets.release(claim)
    else:
        assert offsets.disown(GROUP, tp(0), ONE)
    assert offsets.fetch(GROUP, [tp(0)]) == {}
    assert offsets.claim(GROUP, tp(0), TWO).committed is None


def test_offset_of_topic_without_id_is_not_of_the_next(offsets: RegistryOffsetStore, store: MetadataStore) -> None:
    """Old tools make topics without ids: of these only the time of the write tells."""
    old, node = tp(0, "old"), paths.topic(TopicName("old"))
    data = paths.encode_topic(paths.TopicAssignment(NO_TOPIC_ID, ((BrokerId(1),),)))
    store.create(node, data)
    assert offsets.write(GROUP, {old: at(5)}, []) == {}
    assert offsets.fetch(GROUP) == {old: at(5)}
    store.delete(node)
    store.create(node, data)
    assert offsets.fetch(GROUP) == {}
    assert offsets.claim(GROUP, old, ONE).committed is None


def test_commit_for_replaced_topic_is_refused_and_holds_up_no_other(
    offsets: RegistryOffsetStore, store: MetadataStore, topic_id: TopicId
) -> None:
    again, other = replace_topic(store, "flights"), put_topic(store, "other")
    assert offsets.write(GROUP, {tp(0): at(1)}, [], {FLIGHTS: again}) == {}
    late = {tp(0): at(9), tp(0, "other"): at(2), tp(4): at(9)}
    refused = offsets.write(GROUP, late, [], {FLIGHTS: topic_id, TopicName("other"): other})
    assert refused.keys() == {tp(0), tp(4)}
    assert all(isinstance(error, TopicGone) for error in refused.values())
    assert offsets.fetch(GROUP) == {tp(0): at(1), tp(0, "other"): at(2)}
    assert offsets.partitions(GROUP) == [tp(0), tp(1), tp(0, "other")]


def test_commit_beside_replacement_never_reaches_the_new_topic() -> None:
    """The topic is replaced right before the multi, and the new one's first commit is there already."""
    tree = MemoryTree()
    with Contended(tree) as store, MemoryStore(tree) as outside:
        settle_kind(outside, GROUP, GroupKind.CLIENTS)
        offsets, others = RegistryOffsetStore(store), RegistryOffsetStore(outside)
        topic_id = put_topic(outside, "flights")
        offsets.write(GROUP, {tp(0): at(5)}, [], {FLIGHTS: topic_id})

        def replace(_: int) -> None:
            store.happens = lambda number: None
            others.write(GROUP, {tp(0): at(1)}, [], {FLIGHTS: replace_topic(outside, "flights")})

        store.happens = replace
        assert offsets.write(GROUP, {tp(0): at(6)}, [], {FLIGHTS: topic_id}).keys() == {tp(0)}
        assert offsets.fetch(GROUP) == {tp(0): at(1)}


def test_claim_on_replaced_topic_neither_commits_nor_gives_up_a_position(
    offsets: RegistryOffsetStore, store: MetadataStore, topic_id: TopicId
) -> None:
    claim = offsets.claim(GROUP, tp(0), ONE)
    assert (claim.topic_id, claim.committed) == (topic_id, at(5))
    again = replace_topic(store, "flights")
    for act in (lambda: offsets.commit(offsets.stage([(claim, at(9))])), lambda: offsets.release(claim, at(9))):
        with pytest.raises(TopicGone):
            act()
    assert offsets.fetch(GROUP) == {}
    anew = offsets.claim(GROUP, tp(0), ONE)  # its owner's node is there still
    assert (anew.topic_id, anew.committed) == (again, None)
    with pytest.raises(BadVersion):
        offsets.release(claim)
    offsets.release(anew, at(1))
    assert offsets.fetch(GROUP) == {tp(0): at(1)}
    drop_topic(store, "flights")
    with pytest.raises(TopicGone):
        offsets.claim(GROUP, tp(0), ONE)


def test_owner_whose_offset_node_is_deleted_still_owns_the_partition(
    offsets: RegistryOffsetStore, store: MetadataStore, topic_id: TopicId
) -> None:
    claim = offsets.claim(GROUP, tp(0), ONE)
    forget_offsets(offsets, GROUP, [tp(0)], [])
    with pytest.raises(BadVersion):
        offsets.commit(offsets.stage([(claim, at(8))]))
    claim = offsets.renew(claim)
    with pytest.raises(NodeExists):
        offsets.claim(GROUP, tp(0), TWO)
    [claim] = offsets.commit(offsets.stage([(claim, at(8))]))
    assert offsets.fetch(GROUP, [tp(0)]) == {tp(0): at(8)}
    forget_offsets(offsets, GROUP, [tp(0)], [])
    replace_topic(store, "flights")
    with pytest.raises(TopicGone):
        offsets.renew(claim)
    assert offsets.disown(GROUP, tp(0), ONE)
    assert not offsets.disown(GROUP, tp(0), ONE)
    assert offsets.claim(GROUP, tp(0), TWO).committed is None


def test_only_offsets_of_deleted_topics_are_cleared_away(
    offsets: RegistryOffsetStore, store: MetadataStore, topic_id: TopicId
) -> None:
    other = put_topic(store, "other")
    offsets.write(GROUP, {tp(0, "other"): at(2)}, [], {TopicName("other"): other})
    assert offsets.forget_deleted_topics(GROUP, []) == []
    again = replace_topic(store, "flights")
    offsets.write(GROUP, {tp(0): at(1)}, [], {FLIGHTS: again})
    assert offsets.forget_deleted_topics(GROUP, []) == [tp(1)]
    assert offsets.fetch(GROUP) == {tp(0): at(1), tp(0, "other"): at(2)}
    drop_topic(store, "other")
    offsets.release(offsets.claim(GROUP, tp(2), ONE))
    drop_topic(store, "flights")
    assert offsets.forget_deleted_topics(GROUP, []) == [tp(0), tp(2), tp(0, "other")]
    for parent in (group_paths.offsets(GROUP), group_paths.details(GROUP), group_paths.owners(GROUP)):
        assert store.children(parent) == []


def test_unreadable_node_costs_its_own_offsets_alone(
    offsets: RegistryOffsetStore, store: MetadataStore, topic_id: TopicId
) -> None:
    """A number, what stands beside one, and a topic; nothing of them is cleared away."""
    names = {TopicName(name): put_topic(store, name) for name in ("other", "third")}
    offsets.write(GROUP, {tp(0, name): at(2) for name in names}, [], names)
    offsets.write(GROUP, {tp(2): at(7)}, [], {FLIGHTS: topic_id})
    store.set(group_paths.offset(GROUP, tp(1)), b"seven")
    store.set(group_paths.detail(GROUP, tp(2)), b"{")
    store.set(paths.topic(TopicName("other")), b"no JSON")
    found = offsets.read(GROUP)
    assert found.committed == {tp(0): at(5), tp(0, "third"): at(2)}
    assert {tp: error.path for tp, error in found.unreadable.items()} == {
        tp(1): group_paths.offset(GROUP, tp(1)),
        tp(2): group_paths.offset(GROUP, tp(2)),
        tp(0, "other"): paths.topic(TopicName("other")),
    }
    assert offsets.fetch(GROUP, [tp(0), tp(3)]) == {tp(0): at(5)}
    with pytest.raises(CorruptMetadata):
        offsets.fetch(GROUP, [tp(0), tp(1)])
    drop_topic(store, "third")
    assert offsets.forget_deleted_topics(GROUP, []) == [tp(0, "third")]
    drop_topic(store, "flights")
    assert offsets.forget_deleted_topics(GROUP, []) == [tp(0), tp(1), tp(2)], "whatever they were, they are of no topic"
    assert offsets.partitions(GROUP) == [tp(0, "other")]


def test_nodes_of_owners_go_also_where_the_offsets_went_before(
    offsets: RegistryOffsetStore, store: MetadataStore, topic_id: TopicId
) -> None:
    offsets.claim(GROUP, tp(0), ONE)
    drop_topic(store, "flights")
    offsets.forget_deleted_topics(GROUP, [])
    assert store.children(group_paths.owners(GROUP)) == ["flights"]
    store.delete(group_paths.owner(GROUP, tp(0)))  # as when its session ends
    assert offsets.forget_deleted_topics(GROUP, []) == []
    assert store.children(group_paths.owners(GROUP)) == []


def test_commit_of_new_topic_at_the_moment_of_clearing_stays() -> None:
    tree = MemoryTree()
    with Contended(tree) as store, MemoryStore(tree) as outside:
        settle_kind(outside, GROUP, GroupKind.CLIENTS)
        offsets, others = RegistryOffsetStore(store), RegistryOffsetStore(outside)
        offsets.write(GROUP, {tp(0): at(5)}, [], {FLIGHTS: put_topic(outside, "flights")})
        again = replace_topic(outside, "flights")
        store.happens = lambda number: others.write(GROUP, {tp(0): at(1)}, [], {FLIGHTS: again})
        with pytest.raises(BadVersion):
            offsets.forget_deleted_topics(GROUP, [])
        assert offsets.fetch(GROUP) == {tp(0): at(1)}


def test_fetch_sees_what_was_committed_through_another_server() -> None:
    tree = MemoryTree()
    with MemoryStore(tree) as store, MemoryStore(tree) as outside:
        settle_kind(outside, GROUP, GroupKind.CLIENTS)
        offsets, others = RegistryOffsetStore(store), RegistryOffsetStore(outside)
        topics = {FLIGHTS: put_topic(outside, "flights")}
        others.write(GROUP, {tp(0): at(5)}, [], topics)
        store.fall_behind()
        others.write(GROUP, {tp(0): at(6)}, [], topics)
        assert offsets.fetch(GROUP) == {tp(0): at(6)}


# --- deletion of groups beside their members


def test_group_that_a_member_joins_meanwhile_keeps_its_offsets() -> None:
    tree = MemoryTree()
    with Contended(tree) as store, MemoryStore(tree) as outside:
        ensure_cluster(outside)
        topics = {FLIGHTS: put_topic(outside, "flights", 2_000)}
        settled = settle_kind(outside, GROUP, GroupKind.ACTORS)
        for count in (3, 2_000):
            committed = {tp(index): at(index) for index in range(count)}
            offsets = RegistryOffsetStore(outside)
            offsets.write(GROUP, committed, [], topics)
            store.happens = lambda number: registered(outside, ONE)
            with pytest.raises(NonEmptyGroup):
                delete_group(store, GROUP, [settled.check(GROUP)])
            assert offsets.fetch(GROUP) == committed
            outside.delete(group_paths.member(GROUP, ONE))
            store.happens = lambda number: None
        delete_group(store, GROUP, [settled.check(GROUP)])
        assert not exists(outside, GROUP)
