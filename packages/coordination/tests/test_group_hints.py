"""What a member of a group of actors makes of hints that another's process is gone."""

from __future__ import annotations

from raylog.coordination.groups.assignors import Assignor
from raylog.coordination.groups.group import HINT_HOLDS_MS, Member
from raylog.coordination.metadata.group_events import Died, Effect, Evict, Looked, Noticed, Registered, Started, View
from raylog.protocol.ids import MemberId, MonotonicMs

A, B, C = MemberId("a"), MemberId("b"), MemberId("c")


def view_of(*members: MemberId) -> View:
    return View(None, -1, dict.fromkeys(members, frozenset()), {})


def member_that_sees_all() -> Member:
    """C, while A is the elected one."""
    member = Member(C, Assignor.STICKY, lambda: 0.0)
    for event in (Started(), Registered(), Looked(view_of(A, B, C))):
        member.on(event, MonotonicMs(0))
    return member


def a_is_gone(member: Member, now_ms: int) -> list[Effect]:
    member.on(Noticed(), MonotonicMs(now_ms))
    return member.on(Looked(view_of(B, C)), MonotonicMs(now_ms))


def test_member_elected_after_hint_evicts_the_dead_one() -> None:
    member = member_that_sees_all()
    member.on(Died(B), MonotonicMs(0))
    assert Evict(B) in a_is_gone(member, HINT_HOLDS_MS - 1)


def test_hint_that_is_not_repeated_evicts_nobody_later() -> None:
    """It was wrong: B lives, and has long been reached again."""
    member = member_that_sees_all()
    member.on(Died(B), MonotonicMs(0))
    assert Evict(B) not in a_is_gone(member, HINT_HOLDS_MS)


def test_repeated_hint_holds_on() -> None:
    member = member_that_sees_all()
    member.on(Died(B), MonotonicMs(0))
    member.on(Died(B), MonotonicMs(500))
    assert Evict(B) in a_is_gone(member, HINT_HOLDS_MS + 499)
