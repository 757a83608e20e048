"""What a fetch session remembers."""

from __future__ import annotations

from uuid import UUID

from raylog.client.fetch.fetch_session import FetchSession, Wanted
from raylog.protocol.ids import PartitionIndex, TopicId, TopicName, TopicPartition
from raylog.protocol.wire.fetch import FetchPartition


def test_session_over_ever_new_topics_remembers_few() -> None:
    session = FetchSession()
    before: TopicPartition | None = None
    for number in range(1, 200):
        tp = TopicPartition(TopicName(f"t{number}"), PartitionIndex(0))
        session.want(tp, Wanted(FetchPartition(0, 0, 1), TopicId(UUID(int=number)), None, False))
        if before is not None:
            session.forget(before)
        request = session.request()
        assert [*request.partitions] == [tp]
        assert request.forgotten == ([] if before is None else [before])
        assert {t.topic for t in [tp, *request.forgotten]} <= session.topic_ids.keys(), "the request names their ids"
        assert session.topic_names == {topic_id: name for name, topic_id in session.topic_ids.items()}
        session.answered(7, [tp])
        before = tp
    assert len(session.topic_ids) < 25
