"""Members of a group of actors over both stores: they share the partitions, move what must move, and lose nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import pytest

from kit.group_members import GROUP, TOPIC, Reader, make_topic, started, tps
from kit.machine import scaled
from kit.stores import OpenStore
from kit.topics import drop_topic
from kit.waiting import wait_until
from raylog.client.groups.changes import Assigned, Lost
from raylog.client.groups.member import GroupMember
from raylog.coordination.groups.kinds import GroupKind, settle_kind
from raylog.coordination.groups.offsets import RegistryOffsetStore
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.coordination.store.port import MetadataStore
from raylog.protocol.errors import IllegalGeneration, InconsistentGroupProtocol, InvalidGroupId, UnknownMemberId
from raylog.protocol.ids import GroupId, Offset, TopicName, TopicPartition

pytestmark = pytest.mark.system
WAIT_S = 20.0

Join = Callable[..., Reader]


@pytest.fixture
def join(open_store: OpenStore) -> Iterator[Join]:
    """Makes members, each with a session of its own."""
    readers: list[Reader] = []

    def join_one(
        topics: frozenset[TopicName] | re.Pattern[str] = frozenset({TOPIC}), store: MetadataStore | None = None
    ) -> Reader:
        reader = Reader(started(store or open_store(), topics))
        readers.append(reader)
        return reader

    yield join_one
    for reader in readers:
        reader.stop()
        reader.member.leave(5)


def await_owned(readers: Iterable[Reader], partitions: Iterable[TopicPartition]) -> None:
    """Until they own all of them, each one once, and as many as the others, and their users know it."""
    expected, readers = sorted(partitions), list(readers)

    def settled() -> bool:
        owned = [reader.member.owned for reader in readers]
        told = [frozenset(reader.positions) for reader in readers]
        sizes = [len(one) for one in owned]
        is_shared = sorted(tp for one in owned for tp in one) == expected and max(sizes) - min(sizes) <= 1
        return is_shared and told == owned

    wait_until(settled, WAIT_S, f"{len(readers)} members own {len(expected)} partitions")
    for reader in readers:
        assert reader.error is None, reader.error


def test_members_share_the_partitions_and_move_only_what_must_move(cluster: MetadataStore, join: Join) -> None:
    first = join()
    await_owned([first], tps(*range(6)))
    second = join()
    await_owned([first, second], tps(*range(6)))
    third = join()
    await_owned([first, second, third], tps(*range(6)))
    kept = first.member.owned
    assert second.leave()
    await_owned([first, third], tps(*range(6)))
    assert kept <= first.member.owned
    assert len(cluster.children(group_paths.members(GROUP))) == 2


def test_what_moves_is_committed_as_it_is_given_up(cluster: MetadataStore, join: Join) -> None:
    first = join()
    wait_until(lambda: first.positions.keys() == set(tps(*range(6))), WAIT_S, "its user has heard of all six")
    first.positions |= {tp: Offset(tp.partition + 100) for tp in tps(*range(6))}
    second = join()
    await_owned([first, second], tps(*range(6)))
    theirs = second.member.owned

    def begun() -> dict[TopicPartition, CommittedOffset | None]:
        return {change.tp: change.committed for change in tuple(second.log) if isinstance(change, Assigned)}

    wait_until(lambda: begun().keys() == theirs, WAIT_S, "its user has heard of all it owns")
    assert {tp: committed and committed.offset for tp, committed in begun().items()} == {
        tp: tp.partition + 100 for tp in theirs
    }
    assert first.leave()
    committed = RegistryOffsetStore(cluster).fetch(GROUP)
    assert {tp: found.offset for tp, found in committed.items()} == {tp: tp.partition + 100 for tp in tps(*range(6))}
    assert all(found.committed_ms > 0 for found in committed.values())


def test_a_topic_that_comes_later_or_grows_is_picked_up(cluster: MetadataStore, join: Join) -> None:
    by_name = join(frozenset({TOPIC, TopicName("later")}))
    await_owned([by_name], tps(*range(6)))
    make_topic(cluster, 2, "later")
    await_owned([by_name], [*tps(*range(6)), *tps(0, 1, topic="later")])
    make_topic(cluster, 3, "later")
    await_owned([by_name], [*tps(*range(6)), *tps(0, 1, 2, topic="later")])
    drop_topic(cluster, "later")
    await_owned([by_name], tps(*range(6)))


def test_a_pattern_matches_whole_names_of_topics_also_of_later_ones(cluster: MetadataStore, join: Join) -> None:
    by_pattern = join(re.compile("fli.*|DELAYS", re.IGNORECASE))
    await_owned([by_pattern], tps(*range(6)))
    make_topic(cluster, 1, "not-flights")
    make_topic(cluster, 1, "delays")
    await_owned([by_pattern], [*tps(*range(6)), *tps(0, topic="delays")])


def test_a_member_commits_what_it_owns_and_nothing_else(cluster: MetadataStore, join: Join) -> None:
    first = join()
    await_owned([first], tps(*range(6)))
    first.member.commit(dict.fromkeys(tps(*range(6)), CommittedOffset(Offset(7), metadata="so far")))
    first.member.commit_async(dict.fromkeys(tps(*range(6)), CommittedOffset(Offset(8), metadata="further"))).result(
        scaled(WAIT_S)
    )
    second = join()
    await_owned([first, second], tps(*range(6)))
    ours, theirs = min(first.member.owned), min(second.member.owned)
    with pytest.raises(IllegalGeneration, match=f"{theirs}: member .* has not, or not any more"):
        first.member.commit({theirs: CommittedOffset(Offset(9))})
    assert RegistryOffsetStore(cluster).fetch(GROUP, [ours])[ours][:3] == (8, -1, "further")
    first.leave()
    with pytest.raises(UnknownMemberId, match="it has left"):
        first.member.commit({tps(0)[0]: CommittedOffset(Offset(9))})


def test_a_lost_session_costs_the_partitions_and_a_registration(
    cluster: MetadataStore, join: Join, open_store: OpenStore
) -> None:
    store = open_store()
    reader = join(store=store)
    await_owned([reader], tps(*range(6)))
    reader.member.commit({tp: CommittedOffset(Offset(5)) for tp in tps(*range(6))})
    session = store.session
    open_store().end_session(session)
    wait_until(lambda: len(reader.log) == 18, WAIT_S, "six began, were lost, and began again")
    assert {change.tp for change in reader.log[6:12] if isinstance(change, Lost)} == set(tps(*range(6)))
    assert {
        change.tp: change.committed.offset for change in reader.log[12:] if isinstance(change, Assigned)
    } == dict.fromkeys(tps(*range(6)), 5)
    assert store.session != session


def test_what_was_read_before_a_loss_is_not_committed_when_the_partition_is_ours_again(
    cluster: MetadataStore, open_store: OpenStore
) -> None:
    """Another may have read and committed further meanwhile. The user has not heard of the loss yet."""
    store, [tp, *_] = open_store(), tps(0)
    member = started(store)
    try:
        wait_until(lambda: member.owned == set(tps(*range(6))), WAIT_S, "it owns them")
        with pytest.raises(IllegalGeneration, match=f"{tp}: member .* has not, or not any more"):
            member.commit({tp: CommittedOffset(Offset(1))})  # of which he was not told
        assert len(member.changes()) == 6
        member.commit({tp: CommittedOffset(Offset(50))})
        open_store().end_session(store.session)
        wait_until(lambda: member.describe()["tenures"] == 12, WAIT_S, "it has lost them, and owns them again")
        with pytest.raises(IllegalGeneration, match=f"{tp}: member .* has not, or not any more"):
            member.commit({tp: CommittedOffset(Offset(60))})
        assert [type(change) for change in member.changes()].count(Lost) == 6
        member.commit({tp: CommittedOffset(Offset(51))})
        open_store().end_session(store.session)
        wait_until(lambda: member.describe()["tenures"] == 18, WAIT_S, "once more")
        assert member.leave(WAIT_S, {tp: CommittedOffset(Offset(60))})
        assert RegistryOffsetStore(cluster).fetch(GROUP, [tp])[tp].offset == 51
    finally:
        member.leave(1)


def test_a_group_is_of_one_kind(cluster: MetadataStore, join: Join, open_store: OpenStore) -> None:
    join()
    with pytest.raises(InconsistentGroupProtocol, match="group readers is one of actors"):
        settle_kind(cluster, GROUP, GroupKind.CLIENTS)
    others = GroupId("clients")
    settle_kind(cluster, others, GroupKind.CLIENTS)
    cluster.create(group_paths.state(others), b'{"members": {"a": {}}}')
    member = GroupMember(open_store(), others, frozenset({TOPIC}), host="127.0.0.1")
    with pytest.raises(InconsistentGroupProtocol, match="group clients is one of Kafka's clients"):
        member.start(WAIT_S)
    with pytest.raises(InvalidGroupId, match=r"group\.id is empty"):
        GroupMember(open_store(), GroupId(""), frozenset({TOPIC})).start(WAIT_S)
