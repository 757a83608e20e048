"""Joins that are tried on purpose: of groups that are not there, and of groups that are full."""

from __future__ import annotations

from collections.abc import Iterator

from judge.bases import ask, join, member, sync
from judge.brokers import GROUP_MAX_SIZE
from judge.steps import Ref, RefKind, Sequence, Step, Tree
from raylog.broker.handlers import TABLE

__all__ = ["group_cases"]

DESCRIBE_GROUPS, JOIN, LEAVE = 15, 11, 13
GROUP = "j#"
VERSIONS = next(range(row.min_version, row.max_version + 1) for row in TABLE if row.key == JOIN)
ID_FIRST, STATIC = 4, 5
"""The first versions at which a member is given an id before it joins, and at which one may be static."""
CLIENTS = tuple(f"m{number}" for number in range(GROUP_MAX_SIZE))
FIRST, SECOND, *_ = CLIENTS
LAST, ONE_MORE = CLIENTS[-1], "more"
STATIC_ONE: dict[str, Tree] = {"group_instance_id": "i"}
DESCRIBED = ask(DESCRIBE_GROUPS, 5, "z", groups=[GROUP])


def group_cases() -> Iterator[Sequence]:
    """Each kind at the versions at which it may be answered in another way."""
    for version in VERSIONS:
        for name, values in NOWHERE.items():
            steps = (join(version=version, member_id="nobody", **values), DESCRIBED)
            yield Sequence(f"JoinGroup v{version} no group, a member id, {name}", steps)
            if version in (VERSIONS[0], VERSIONS[-1]):
                left = (join(FIRST, 3, waits=True), _leaves(FIRST), *steps)
                yield Sequence(f"JoinGroup v{version} no members, a member id, {name}", left)
    for version in (0, 3):
        yield Sequence(f"JoinGroup v{version} one too many", (*_join_directly(version), *_late_first(), DESCRIBED))
    for version in (ID_FIRST, VERSIONS[-1]):
        yield Sequence(f"JoinGroup v{version} ids for one too many, the first late", tuple(_ids_first(version)))
        yield Sequence(f"JoinGroup v{version} ids for one too many, the last late", tuple(_ids_last(version)))
    for version in (3, ID_FIRST, VERSIONS[-1]):
        yield Sequence(f"JoinGroup v{version} full", tuple(_full(version)))
    for version in (STATIC, VERSIONS[-1]):
        yield Sequence(f"JoinGroup v{version} full, a static member", tuple(_full_and_static(version)))


NOWHERE: dict[str, dict[str, Tree]] = {
    "range": {},
    "no protocol type": {"protocol_type": ""},
    "no protocols": {"protocols": []},
    "a session too short": {"session_timeout": 1},
    "a session too short and no protocol type": {"session_timeout": 1, "protocol_type": ""},
}


def _leaves(client: str) -> Step:
    return ask(LEAVE, 2, "z", group_id=GROUP, member_id=member(client))


def _join_directly(version: int) -> Iterator[Step]:
    """As many as may be, and one more, of whom all but the first wait for it."""
    for client in (*CLIENTS, ONE_MORE):
        yield join(client, version, waits=True)


def _late_first() -> Iterator[Step]:
    """All others wait, and have the places."""
    yield join(FIRST, 3, waits=True, member_id=member(FIRST))


def _ids(version: int) -> Iterator[Step]:
    """An id for each, and one more: none of them has joined."""
    for client in (*CLIENTS, ONE_MORE):
        yield join(client, version)
    yield DESCRIBED


def _ids_first(version: int) -> Iterator[Step]:
    """All join but the first, which was alone before."""
    yield from _ids(version)
    for client in (*CLIENTS, ONE_MORE, FIRST):
        yield join(client, version, waits=True, member_id=member(client))
    yield DESCRIBED


def _ids_last(version: int) -> Iterator[Step]:
    """All join that may, and the one more is late: until then nobody is given an id."""
    yield from _ids(version)
    for client in (*CLIENTS, FIRST):
        yield join(client, version, waits=True, member_id=member(client))
    yield DESCRIBED
    yield join("other", version)
    yield join(ONE_MORE, version, waits=True, member_id=member(ONE_MORE))
    yield DESCRIBED


def _full(version: int) -> Iterator[Step]:
    """A settled group that is full, and then is not."""
    yield from _settled()
    yield join(ONE_MORE, version, waits=True)
    yield join(SECOND, version, waits=True, member_id=member(SECOND))
    yield DESCRIBED
    yield _leaves(SECOND)
    yield join(ONE_MORE, version, waits=True)
    yield join(ONE_MORE, version, waits=True, member_id=member(ONE_MORE))
    yield join("other", version, waits=True)
    yield DESCRIBED


def _full_and_static(version: int) -> Iterator[Step]:
    """In a settled group that is full a static member starts again."""
    yield from _settled()
    yield DESCRIBED
    yield join("again", version, waits=True, **STATIC_ONE)
    yield DESCRIBED


def _settled() -> Iterator[Step]:
    """As many as may be, the first of which is static, and leads."""
    yield join(FIRST, STATIC, waits=True, **STATIC_ONE)
    for client in CLIENTS[1:]:
        yield join(client, 3, waits=True)
    yield join(FIRST, STATIC, waits=True, member_id=member(FIRST), **STATIC_ONE)
    for client in (SECOND, FIRST):
        yield sync(client, waits=True, generation=Ref(RefKind.GENERATION, FIRST))
