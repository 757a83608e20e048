"""A follower's end of a fetch session (KIP-227): what it names, and when it begins anew."""

from __future__ import annotations

from uuid import UUID

import pytest

from raylog.broker.replicas.follower_session import FollowerSession
from raylog.protocol.wire.fetch import FetchPartition, FetchTopic

TOPIC = UUID(int=1)
PARTS = [FetchPartition(0, 5, 100), FetchPartition(1, 7, 100)]


@pytest.fixture
def session() -> FollowerSession:
    """The leader knows two partitions."""
    session = FollowerSession()
    for part in PARTS:
        session.want(TOPIC, part)
    session.request()
    session.answered(9)
    return session


def test_what_the_leader_knows_is_not_named_again(session: FollowerSession) -> None:
    session.want(TOPIC, PARTS[0])
    assert session.request() == (9, 1, [], [])


@pytest.mark.parametrize("is_under_way", [True, False], ids=["during a request", "between requests"])
def test_partition_that_is_followed_anew_begins_session_anew(session: FollowerSession, is_under_way: bool) -> None:
    """An answer about its former time was dropped, perhaps: the leader believes that its log start was told."""
    if is_under_way:
        session.request()
    session.leave_out(TOPIC, 0)
    session.want(TOPIC, PARTS[0])
    if is_under_way:
        session.answered(9)
    assert session.request() == (9, 0, [FetchTopic("", TOPIC, PARTS)], ())
    session.answered(10)
    assert session.request() == (10, 1, [], []), "once"
