"""Static members (KIP-345) of a group of actors in the registries: a new process of an instance takes all over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from kit.registry_side import GROUP, TOPIC, TP, RegistrySide
from kit.topics import put_topic
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_events import (
    Claimed,
    ClaimLost,
    ClaimPartition,
    ClaimRefused,
    Deregister,
    Deregistered,
    Event,
    Evict,
    Look,
    LookFailed,
    Publish,
    Published,
    Register,
    RegistrationFailed,
    Release,
)
from raylog.coordination.metadata.group_events import Registered as IsRegistered
from raylog.coordination.metadata.group_model import CommittedOffset, Registered, Shares
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.protocol.errors import FencedInstanceId, IllegalGeneration
from raylog.protocol.ids import (
    Generation,
    InstanceId,
    MemberId,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
)

INSTANCE = InstanceId("i")
FIRST, SECOND, THIRD, OTHER = (MemberId(name) for name in ("i#1", "i#2", "i#3", "other"))
NEXT, THEIRS = (TopicPartition(TOPIC, PartitionIndex(index)) for index in (1, 2))
SHARES = Shares(Generation(7), {FIRST: (TP, NEXT), OTHER: (THEIRS,)})


class Side(RegistrySide):
    """Of INSTANCE, unless the member is called OTHER."""

    def __init__(self, tree: MemoryTree, name: MemberId) -> None:
        instance = None if name == OTHER else INSTANCE
        super().__init__(tree, name, Registered(frozenset({TOPIC}), None, instance=instance))
        self.met = False
        """What was to come before an answer has come."""

    def register_while(self, number: int, happens: Callable[[], object]) -> Event | None:
        """``happens`` comes before the answer to request ``number`` of it, counted from 1."""

        def meets() -> None:
            self.met = True
            happens()

        self.after_answers(number, meets)
        try:
            return self.do(Register())
        finally:
            self.store.before_answer = None


def new_tree() -> MemoryTree:
    tree = MemoryTree()
    with MemoryStore(tree) as store:
        put_topic(store, TOPIC, 3)
    return tree


def at_work(tree: MemoryTree) -> Side:
    """FIRST, which works on TP and has committed 5, beside OTHER."""
    other = Side(tree, OTHER).registered()
    first = Side(tree, FIRST).registered()
    assert other.do(Publish(SHARES, -1)) == Published()
    assert first.do(ClaimPartition(TP)) == Claimed(TP)
    first.commit(5)
    return first


@pytest.fixture
def tree() -> MemoryTree:
    return new_tree()


@pytest.fixture
def first(tree: MemoryTree) -> Side:
    return at_work(tree)


def test_new_process_takes_share_and_claims_over_at_once(tree: MemoryTree, first: Side) -> None:
    second = Side(tree, SECOND).registered()
    view = second.look()
    assert view.members.keys() == {SECOND, OTHER}
    assert view.shares == Shares(Generation(8), {SECOND: (TP, NEXT), OTHER: (THEIRS,)})
    assert second.do(ClaimPartition(TP)) == Claimed(TP), "though the session of the first lives"
    claim = second.registry.claims.get(TP)
    assert claim is not None
    assert claim.committed is not None
    assert claim.committed.offset == 5
    share = first.store.get(group_paths.share(GROUP, OTHER))
    assert share is not None
    assert share.version == 0, "nobody else's share is written"
    assert first.store.exists(group_paths.share(GROUP, FIRST)) is None


def test_former_process_writes_nothing_once_replaced(tree: MemoryTree, first: Side) -> None:
    Side(tree, SECOND).registered()
    with pytest.raises(IllegalGeneration):
        first.commit(9)
    assert first.do(ClaimPartition(NEXT)) == ClaimRefused(NEXT)
    assert first.do(Publish(Shares(Generation(9), {FIRST: (TP,)}), 1)) == LookFailed()
    assert first.do(Release(TP, CommittedOffset(Offset(9)))) == ClaimLost(TP)
    assert first.do(Deregister()) == Deregistered()
    assert first.committed() == 5
    assert first.store.children(group_paths.members(GROUP)) == [SECOND, OTHER]
    assert first.store.children(group_paths.instances(GROUP)) == [INSTANCE]


def test_former_process_is_fenced_when_it_comes_again(tree: MemoryTree, first: Side) -> None:
    assert first.registry.fencing() is None
    second = Side(tree, SECOND).registered()
    with pytest.raises(FencedInstanceId, match=r"group g: .* group.instance.id 'i', so member i#1 is out"):
        first.do(Register())
    tree.expire(first.store.session.id)
    first.store.resume()
    first.registry.session_lost()
    assert isinstance(first.registry.fencing(), FencedInstanceId)
    with pytest.raises(FencedInstanceId):
        first.do(Register())
    assert second.look().members.keys() == {SECOND, OTHER}


def test_process_whose_session_ended_comes_again(tree: MemoryTree, first: Side) -> None:
    tree.expire(first.store.session.id)
    first.store.resume()
    first.registry.session_lost()
    assert first.registered().look().members.keys() == {FIRST, OTHER}


def test_former_process_that_commits_meanwhile_is_replaced_all_the_same(tree: MemoryTree, first: Side) -> None:
    second = Side(tree, SECOND)
    commits: list[int] = []

    def commit_now_and_then() -> None:
        if len(commits) < 2:
            commits.append(5 + len(commits))
            first.commit(commits[-1])

    second.store.before_answer = commit_now_and_then
    assert second.do(Register()) == IsRegistered()
    second.store.before_answer = None
    assert (commits, second.committed()) == ([5, 6], 6)
    with pytest.raises(IllegalGeneration):
        first.commit(9)


def test_session_that_ends_meanwhile_leaves_one_member() -> None:
    for number in count(1):
        tree = new_tree()
        first, second = at_work(tree), Side(tree, SECOND)
        ends = partial(tree.expire, first.store.session.id)
        assert second.register_while(number, ends) == IsRegistered()
        if not second.met:
            break
        assert second.look().members.keys() == {SECOND, OTHER}
        assert second.do(ClaimPartition(TP)) == Claimed(TP)
    assert number > 10


@pytest.mark.parametrize("is_replacement", [False, True])
def test_of_two_new_processes_one_is_left(is_replacement: bool) -> None:
    for number in count(1):
        tree = new_tree()
        if is_replacement:
            at_work(tree)
        second, third = Side(tree, SECOND), Side(tree, THIRD)
        second.register_while(number, third.registered)
        if not second.met:
            break
        names = [name for name in second.store.children(group_paths.members(GROUP)) if name != OTHER]
        assert names in ([SECOND], [THIRD])
        fenced = third if names == [SECOND] else second
        assert isinstance(fenced.registry.fencing(), FencedInstanceId)
    assert number > 5


def test_registration_that_was_not_heard_of_is_known_again() -> None:
    for number in count(1):
        tree = new_tree()
        at_work(tree)
        second = Side(tree, SECOND)
        if second.register_while(number, second.store.lose_next_answer) == RegistrationFailed():
            second.registered()
        if not second.met:
            break
        second.do(Look())  # whose answer is lost where all of the registration had come
        assert second.look().members.keys() == {SECOND, OTHER}
        assert second.do(ClaimPartition(TP)) == Claimed(TP)
    assert number > 10


def test_member_that_comes_back_unheard_is_not_fenced_by_itself() -> None:
    for number in count(1):
        tree = new_tree()
        first = at_work(tree)
        tree.expire(first.store.session.id)
        first.store.resume()
        first.registry.session_lost()
        if first.register_while(number, first.store.lose_next_answer) == RegistrationFailed():
            first.registered()
        if not first.met:
            break
        first.do(Look())
        assert first.look().members.keys() == {FIRST, OTHER}
    assert number > 5


def test_member_that_leaves_frees_its_instance(tree: MemoryTree, first: Side) -> None:
    assert first.do(Deregister()) == Deregistered()
    assert first.store.children(group_paths.instances(GROUP)) == []
    assert first.registered().registry.fencing() is None


def test_instance_ends_with_its_session(tree: MemoryTree, first: Side) -> None:
    tree.expire(first.store.session.id)
    with MemoryStore(tree) as store:
        assert store.children(group_paths.instances(GROUP)) == []
        assert store.children(group_paths.members(GROUP)) == [OTHER]


def test_assignment_without_single_shares_passes_too(tree: MemoryTree, first: Side) -> None:
    for member in (FIRST, OTHER):
        first.store.delete(group_paths.share(GROUP, member))
    assert Side(tree, SECOND).registered().look().shares == Shares(
        Generation(8), {SECOND: (TP, NEXT), OTHER: (THEIRS,)}
    )


def test_former_process_that_owns_too_much_is_waited_for(
    tree: MemoryTree, first: Side, caplog: pytest.LogCaptureFixture
) -> None:
    for index in range(1_500):
        tp = TopicPartition(TopicName("t" * 249), PartitionIndex(index))
        first.store.create(group_paths.offset(GROUP, tp), b"0", parents=True)
        first.store.create(group_paths.owner(GROUP, tp), group_paths.encode_owner(FIRST), parents=True)
    second = Side(tree, SECOND)
    assert second.do(Register()) == RegistrationFailed()
    assert "i#2 waits for the end of a session" in caplog.text
    tree.expire(first.store.session.id)
    second.registered()


def test_dynamic_member_is_evicted_as_before(tree: MemoryTree, first: Side) -> None:
    first.do(Evict(OTHER))
    assert first.look().members.keys() == {FIRST}
