"""Static members (KIP-345) of a group of actors over both stores: they close, are replaced, and come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kit.group_members import GROUP, Reader, started, tps
from kit.stores import OpenStore
from kit.waiting import wait_until
from raylog.client.groups.changes import Assigned, Lost
from raylog.client.groups.member import GroupMember
from raylog.coordination.groups.assignors import Assignor
from raylog.coordination.metadata import group_paths
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.port import MetadataStore
from raylog.protocol.errors import FencedInstanceId
from raylog.protocol.ids import InstanceId, Offset, TopicPartition

pytestmark = pytest.mark.system
WAIT_S = 20.0
ONE, TWO, THREE = map(InstanceId, ("1", "2", "3"))

Join = Callable[..., "Static"]


class Static:
    """A static member with its user and its store."""

    def __init__(self, store: MetadataStore, instance: InstanceId | None, assignor: Assignor) -> None:
        self.store = store
        self.reader = Reader(started(store, instance=instance, assignor=assignor))
        self.member: GroupMember = self.reader.member

    def close(self) -> None:
        """As a consumer does."""
        assert self.reader.leave()
        self.store.abandon()

    def end(self) -> None:
        self.reader.stop()
        self.member.leave(5)


@pytest.fixture
def join(open_store: OpenStore) -> Iterator[Join]:
    joined: list[Static] = []

    def join_one(instance: InstanceId | None, assignor: Assignor = Assignor.STICKY) -> Static:
        joined.append(Static(open_store(), instance, assignor))
        return joined[-1]

    yield join_one
    for static in joined:
        static.end()


def await_shared(*members: Static) -> None:
    """Until they own all six partitions, as many as each other, and their users know it."""

    def settled() -> bool:
        owned = [static.member.owned for static in members]
        sizes = [*map(len, owned)]
        told = [frozenset(static.reader.positions) for static in members]
        return sum(sizes) == 6 and max(sizes) - min(sizes) <= 1 and told == owned

    wait_until(settled, WAIT_S, f"{len(members)} members share 6 partitions")


@pytest.mark.parametrize("assignor", [*Assignor])
def test_closed_member_finds_its_partitions_and_no_other_notices(
    cluster: MetadataStore, join: Join, assignor: Assignor
) -> None:
    """Each one of a group whose members are all static, the elected one too."""
    members = [join(instance, assignor) for instance in (ONE, TWO, THREE)]
    await_shared(*members)
    for place, instance in enumerate((ONE, TWO, THREE)):
        closing, others = members[place], [*members[:place], *members[place + 1 :]]
        had = closing.member.owned
        closing.reader.positions |= {tp: Offset(100 + place) for tp in had}
        logs = [len(other.reader.log) for other in others]
        closing.close()
        members[place] = join(instance, assignor)
        await_shared(*members)
        assert members[place].member.owned == had
        began = [change for change in members[place].reader.log if isinstance(change, Assigned)]
        assert {change.committed and change.committed.offset for change in began} == {100 + place}
        assert [len(other.reader.log) for other in others] == logs, "the others hear of nothing"
    assert len(cluster.children(group_paths.members(GROUP))) == 3


def test_partitions_of_closed_member_are_others_once_its_session_ends(cluster: MetadataStore, join: Join) -> None:
    """Whatever happens meanwhile: one comes and goes."""
    static, dynamic = join(ONE), join(None)
    await_shared(static, dynamic)
    session, had = static.store.session, static.member.owned
    static.close()
    another = join(None)

    def settled() -> bool:
        return len(another.member.owned) >= 1 and len(dynamic.member.owned | another.member.owned | had) == 6

    wait_until(settled, WAIT_S, "what it had not is shared")
    assert not had & (dynamic.member.owned | another.member.owned)
    another.end()
    cluster.end_session(session)
    await_shared(dynamic)
    assert cluster.children(group_paths.instances(GROUP)) == []


def test_older_of_two_processes_is_fenced(cluster: MetadataStore, join: Join) -> None:
    older, other = join(ONE), join(TWO)
    await_shared(older, other)
    had, log = older.member.owned, len(other.reader.log)
    newer = join(ONE)
    await_shared(newer, other)
    assert newer.member.owned == had
    assert len(other.reader.log) == log

    def is_fenced() -> bool:
        return isinstance(older.reader.error, FencedInstanceId)

    wait_until(is_fenced, WAIT_S, "its poll raises")
    assert not older.member.owned
    with pytest.raises(FencedInstanceId, match=r"group\.instance\.id '1'"):
        older.member.commit({})
    await_shared(newer, other)


def test_member_whose_session_ended_comes_back(cluster: MetadataStore, join: Join) -> None:
    member, other = join(ONE), join(TWO)
    await_shared(member, other)
    cluster.end_session(member.store.session)
    if isinstance(member.store, MemoryStore):
        member.store.suspend()
        member.store.resume()

    def has_lost() -> bool:
        return any(isinstance(change, Lost) for change in member.reader.log)

    wait_until(has_lost, WAIT_S, "it is told")
    await_shared(member, other)


def test_static_member_gives_up_what_is_revoked_while_it_closes(cluster: MetadataStore, join: Join) -> None:
    member = join(ONE)
    await_shared(member)
    member.reader.stop()
    other = join(TWO)

    def waits() -> bool:
        return len(member.member.owned) == 3

    wait_until(waits, WAIT_S, "it has to give three up, and its user does not hear of it")
    assert member.member.leave(30, {})
    member.store.abandon()
    wait_until(lambda: len(other.member.owned) == 3, WAIT_S, "the other has what it was to have")
    kept: set[TopicPartition] = {*tps(*range(6))} - other.member.owned
    again = join(ONE)
    await_shared(again, other)
    assert again.member.owned == kept
