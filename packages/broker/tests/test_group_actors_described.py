"""Groups of actors as a broker describes them, out of registries that others wrote."""

from __future__ import annotations

import time

import pytest

from raylog.broker.groups.actors import describe_actors
from raylog.coordination import group_paths
from raylog.coordination.group_model import Registered
from raylog.coordination.memory_store import MemoryStore
from raylog.coordination.memory_tree import MemoryTree
from raylog.protocol.consumer_protocol import subscribed_topics
from raylog.protocol.ids import GroupId, MemberId, TimestampMs, TopicName

GROUP = GroupId("g")
TOPICS = [TopicName("flights"), TopicName("a" * 60 + "-")]


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("pattern", "topics"), [("fl.*", ["flights"]), ("(a+)+$", []), (r"(a)\1", []), ("(" * 10_000, [])]
)
def test_pattern_of_member_costs_the_broker_milliseconds(pattern: str, topics: list[str]) -> None:
    store = MemoryStore(MemoryTree())
    store.start()
    store.ensure(group_paths.members(GROUP))
    about = group_paths.encode_member(Registered(frozenset(), pattern, "", -1), TimestampMs(0))
    store.create(group_paths.member(GROUP, MemberId("m")), about, ephemeral=True)
    begun = time.thread_time()
    [member] = describe_actors(store, GROUP, TOPICS).members
    assert time.thread_time() - begun < 0.5
    assert sorted(subscribed_topics(member.metadata)) == topics
