"""Groups in which a clock decides: members that die, that do not join again or do not sync, ids that nobody joins with.

A step of the client ``LATER`` is asked when that time is over: of Kafka after a while, of ours until the answer is
Kafka's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from judge.bases import ask, join, member, sync
from judge.steps import LATER, Ref, RefKind, Sequence, Step, Tree

__all__ = ["late_cases"]

DESCRIBE_GROUPS, HEARTBEAT, OFFSET_COMMIT = 15, 12, 8
GROUP = "j#"
SOON_MS = 3_000
Values = dict[str, Tree]
DYING: Values = {"session_timeout": SOON_MS}
HASTY: Values = {"rebalance_timeout": SOON_MS}
STATIC: Values = {"group_instance_id": "i"}
DIRECT, FIRST_STATIC, LAST = 3, 5, 9
"""Versions of JoinGroup: the last at which a member joins without an id, the first of static members, and the last."""
DESCRIBED = ask(DESCRIBE_GROUPS, 5, "z", groups=[GROUP])
DESCRIBED_LATER = DESCRIBED._replace(client=LATER)


def late_cases() -> Iterator[Sequence]:
    """What is waited for is over SOON_MS after a member was heard of last."""
    for name, steps in CASES.items():
        yield Sequence(f"JoinGroup late: {name}", tuple(steps()))


def _joins(client: str, values: Values, *, again: bool = False, waits: bool = True) -> Step:
    version = FIRST_STATIC if "group_instance_id" in values else DIRECT
    return join(client, version, waits=waits, member_id=member(client) if again else "", **values)


def _syncs(client: str, values: Values) -> Step:
    instance = {key: value for key, value in values.items() if key in STATIC}
    return sync(client, Ref(RefKind.GENERATION, client), waits=True, **instance)


def _heartbeat(client: str, values: Values) -> Step:
    generation = Ref(RefKind.GENERATION, client)
    instance = {key: value for key, value in values.items() if key in STATIC}
    return ask(HEARTBEAT, 4, client, group_id=GROUP, generation_id=generation, member_id=member(client), **instance)


def _commit(client: str) -> Step:
    part = {"partition_index": 0, "committed_offset": 1}
    return ask(
        OFFSET_COMMIT, 8, client, group_id=GROUP, generation_id_or_member_epoch=Ref(RefKind.GENERATION, client),
        member_id=member(client), topics=[{"name": "t", "partitions": [part]}],
    )  # fmt: skip


def _pair(first: Values, second: Values) -> Iterator[Step]:
    """A settled group of ``a``, which leads, and ``b``."""
    yield _joins("a", first, waits=False)
    yield _joins("b", second)
    yield _joins("a", first, again=True)
    yield _syncs("b", second)
    yield _syncs("a", first)


def _dies(first: Values, second: Values, lost: str, left: str) -> Iterator[Step]:
    """One is not heard of any more; the other hears of it, and joins again."""
    yield from _pair(first, second)
    yield DESCRIBED_LATER
    for client, values in ((lost, first if lost == "a" else second), (left, second if lost == "a" else first)):
        yield _heartbeat(client, values)
        yield _commit(client)
    yield _joins(left, second if lost == "a" else first, again=True)
    yield DESCRIBED


def _does_not_join_again(second: Values) -> Iterator[Step]:
    yield from _pair(HASTY, second)
    yield _joins("c", HASTY)
    yield _joins("a", HASTY, again=True)
    yield DESCRIBED
    yield DESCRIBED_LATER
    yield _heartbeat("b", second)
    yield _joins("b", second, again=True)
    yield DESCRIBED


def _does_not_sync() -> Iterator[Step]:
    yield from tuple(_pair(HASTY, HASTY))[:3]
    yield _syncs("a", HASTY)
    yield DESCRIBED
    yield DESCRIBED_LATER
    yield _heartbeat("b", HASTY)
    yield _heartbeat("a", HASTY)


def _id_holds_up() -> Iterator[Step]:
    """Members that have joined wait for one that has an id, until that is over."""
    yield from _pair({}, {})
    yield join("c", LAST, **DYING)
    yield _joins("a", {}, again=True)
    yield _joins("b", {}, again=True)
    yield DESCRIBED
    yield DESCRIBED_LATER
    yield join("c", LAST, member_id=member("c"), **DYING)
    yield DESCRIBED


CASES: Mapping[str, Callable[[], Iterator[Step]]] = {
    "a member dies": lambda: _dies({}, DYING, "b", "a"),
    "a leader dies": lambda: _dies(DYING, {}, "a", "b"),
    "a static member dies": lambda: _dies({}, {**DYING, **STATIC}, "b", "a"),
    "a member does not join again": lambda: _does_not_join_again(HASTY),
    "a static member does not join again": lambda: _does_not_join_again({**HASTY, **STATIC}),
    "a member does not sync": _does_not_sync,
    "an id holds others up": _id_holds_up,
}
