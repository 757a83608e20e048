"""The cache of fetch sessions and one session's life, without files or sockets (KIP-227)."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import pytest

from raylog.broker.handlers.fetch_sessions import EVICTION_MS, MAX_FAILING, FetchSessions, IncrementalFetch
from raylog.broker.replication.delayed import DelayedFetches
from raylog.protocol.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from raylog.protocol.wire.primitives import ZERO_UUID

MINUTE = 60_000


def make(slots: int = 3, **more: int) -> FetchSessions:
    ids = itertools.count(1)
    return FetchSessions(slots, DelayedFetches(nullcontext()), new_id=ids.__next__, new_lock=nullcontext, **more)


def tp(index: int) -> TopicPartition:
    return TopicPartition(TopicName("t"), PartitionIndex(index))


def request(
    *partitions: int, session_id: int = 0, epoch: int = 0, offset: int = 0, forget: tuple[int, ...] = (), **more: int
) -> FetchRequest:
    topics = [FetchTopic("t", ZERO_UUID, [FetchPartition(index, offset, 100) for index in partitions])]
    forgotten = [ForgottenTopic("t", ZERO_UUID, forget)] if forget else []
    return FetchRequest(
        500, 1, topics if partitions else [], session_id=session_id, session_epoch=epoch, forgotten=forgotten, **more
    )


def found(index: int, high_watermark: int = 0, *, records: bytes | None = None, error: int = 0) -> FetchedPartition:
    return FetchedPartition(index, error, high_watermark, high_watermark, 0, records)


def create(sessions: FetchSessions, *partitions: int, now_ms: int = 0, **more: int) -> int:
    told = [found(index) for index in partitions]
    return sessions.create(request(*partitions, **more), told, by_id=False, now_ms=now_ms)


def go_on(
    sessions: FetchSessions, session_id: int, epoch: int, *partitions: int, now_ms: int = 0, **more: object
) -> IncrementalFetch:
    asked = request(*partitions, session_id=session_id, epoch=epoch, **more)  # type: ignore[arg-type]
    going = sessions.begin(asked, by_id=False, now_ms=now_ms)
    assert going is not None
    return going


def look(going: IncrementalFetch, *, at_all: bool = False) -> list[int]:
    """Which partitions the request has to look at; they are watched from now on."""
    looked_at = going.look(1, lambda: None, at_all=at_all)
    going.watch_also([(partition, tp(partition.key[2])) for partition in looked_at])
    return [partition.key[2] for partition in looked_at]


def report(going: IncrementalFetch, *results: FetchedPartition, more: bool = False) -> list[int]:
    """Which partitions the client hears of."""
    known = {partition.key[2]: partition for partition in going._session.partitions.values()}
    told = going.report([(known[result.partition], result, more) for result in results])
    return [results[number].partition for number in told]


def idle(sessions: FetchSessions, count: int = 3) -> int:
    """A session at epoch 2 whose partitions have nothing to tell."""
    session_id = create(sessions, *range(count))
    going = go_on(sessions, session_id, 1)
    assert look(going) == list(range(count))
    assert report(going, *map(found, range(count))) == []
    return session_id


# --- what is looked at, and what is told ---------------------------------------------------------------------


def test_idle_partitions_are_neither_looked_at_nor_told() -> None:
    sessions = make()
    session_id = idle(sessions)
    going = go_on(sessions, session_id, 2)
    assert look(going) == []


def test_an_advance_brings_its_partition_back() -> None:
    sessions = make()
    going = go_on(sessions, idle(sessions), 2)
    assert look(going) == []
    sessions.delayed.advanced(tp(1), 10)
    assert look(going) == [1]
    assert report(going, found(1, 1, records=b"x")) == [1]


def test_an_advance_between_two_requests_is_not_lost() -> None:
    sessions = make()
    session_id = idle(sessions)
    sessions.delayed.advanced(tp(2), 10)
    sessions.delayed.advanced(tp(2), 10)
    assert look(go_on(sessions, session_id, 2)) == [2]


def test_what_the_client_asks_anew_is_looked_at() -> None:
    sessions = make()
    session_id = idle(sessions)
    going = go_on(sessions, session_id, 2, 1, 7, offset=5)
    assert look(going) == [1, 7]
    assert report(going, found(1), found(7)) == [7]
    assert [p.wanted.fetch_offset for p in going.look(1, lambda: None, at_all=True)] == [0, 5, 0, 5]


def test_a_forgotten_partition_is_gone() -> None:
    sessions = make()
    session_id = idle(sessions)
    going = go_on(sessions, session_id, 2, forget=(0, 9))
    sessions.delayed.advanced(tp(0), 1)
    assert look(going) == []
    assert look(going, at_all=True) == [1, 2]
    assert sessions.partition_count == 2


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (found(0), False),
        (found(0, 1), True),
        (found(0, records=b"x"), True),
        (found(0, error=1), True),
        (found(0)._replace(log_start_offset=3), True),
        (found(0)._replace(last_stable_offset=3), False),
        (found(0)._replace(preferred_read_replica=2), True),
    ],
    ids=str,
)
def test_only_news_is_told(result: FetchedPartition, told: bool) -> None:
    sessions = make()
    session_id = idle(sessions)
    assert report(go_on(sessions, session_id, 2), result) == ([0] if told else [])
    always = result.records or result.error_code or result.preferred_read_replica >= 0
    assert report(go_on(sessions, session_id, 3), result) == ([0] if always else [])


def test_what_is_not_finished_is_looked_at_again() -> None:
    sessions = make()
    session_id = idle(sessions)
    sessions.delayed.advanced(tp(0), 1)
    for epoch, (result, more, again) in enumerate(
        [
            (found(0, records=b"x"), False, [0]),
            (found(0), True, [0]),
            (found(0, error=6), True, [0]),
            (found(0), False, []),
            (found(0), False, []),
        ],
        start=2,
    ):
        going = go_on(sessions, session_id, epoch)
        look(going)
        report(going, result, more=more)
        assert look(going) == again


@pytest.mark.parametrize("high_watermark", [0, 1])
def test_the_end_of_an_error_is_told(high_watermark: int) -> None:
    sessions = make()
    session_id = idle(sessions)
    assert report(go_on(sessions, session_id, 2), found(0, error=6)) == [0]
    assert report(go_on(sessions, session_id, 3), found(0, high_watermark)) == [0]
    assert report(go_on(sessions, session_id, 4), found(0, high_watermark)) == []


def test_those_that_waited_longest_are_read_first() -> None:
    sessions = make()
    session_id = idle(sessions)
    for index in range(3):
        sessions.delayed.advanced(tp(index), 1)
    going = go_on(sessions, session_id, 2)
    assert look(going) == [0, 1, 2]
    report(going, found(0, 1, records=b"all that fits"), found(1, 1), found(2, 1), more=True)
    assert look(go_on(sessions, session_id, 3)) == [1, 2, 0]


def test_another_isolation_level_may_see_more() -> None:
    sessions = make()
    session_id = idle(sessions)
    assert look(go_on(sessions, session_id, 2, isolation_level=1)) == [0, 1, 2]


# --- epochs --------------------------------------------------------------------------------------------------


def test_epochs_must_follow() -> None:
    sessions = make()
    session_id = create(sessions, 0)
    go_on(sessions, session_id, 1)
    for wrong in (1, 3, -2):
        with pytest.raises(InvalidFetchSessionEpoch):
            go_on(sessions, session_id, wrong)
    go_on(sessions, session_id, 2)
    with pytest.raises(FetchSessionIdNotFound):
        go_on(sessions, session_id + 1, 1)


def test_epochs_wrap_to_one() -> None:
    sessions = make()
    session_id = create(sessions, 0)
    sessions._sessions[session_id].epoch = 2**31 - 1
    go_on(sessions, session_id, 2**31 - 1)
    go_on(sessions, session_id, 1)


def test_a_request_that_was_overtaken_is_refused_and_loses_nothing() -> None:
    sessions = make()
    session_id = idle(sessions)
    sessions.delayed.advanced(tp(1), 10)
    first = go_on(sessions, session_id, 2)
    assert look(first) == [1]
    second = go_on(sessions, session_id, 3)
    for use in (lambda: look(first), lambda: first.report([])):
        with pytest.raises(InvalidFetchSessionEpoch):
            use()
    assert look(second) == [1]


def test_names_and_ids_do_not_mix() -> None:
    sessions = make()
    session_id = create(sessions, 0)
    with pytest.raises(FetchSessionTopicIdError):
        sessions.begin(request(session_id=session_id, epoch=1), by_id=True, now_ms=0)


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_fetch_ends_the_session_that_it_names(epoch: int) -> None:
    sessions = make()
    session_id = idle(sessions)
    assert sessions.begin(request(0, session_id=session_id, epoch=epoch), by_id=False, now_ms=0) is None
    assert (len(sessions), sessions.partition_count, len(sessions.delayed)) == (0, 0, 0)


def test_a_session_that_loses_its_last_partition_ends() -> None:
    sessions = make()
    session_id = idle(sessions)
    asked = request(session_id=session_id, epoch=2, forget=(0, 1, 2))
    assert sessions.begin(asked, by_id=False, now_ms=0) is None
    assert (len(sessions), sessions.partition_count, len(sessions.delayed)) == (0, 0, 0)


# --- the cache -----------------------------------------------------------------------------------------------


def test_without_a_slot_there_is_no_session() -> None:
    sessions = make(slots=2)
    assert [create(sessions, 0, 1), create(sessions, 0), create(sessions, 0, 1, 2)] == [1, 2, 0]
    assert create(make(slots=0), 0) == 0
    assert create(make()) == 1, "its partitions may come later"


def test_a_session_that_was_not_used_for_long_makes_room() -> None:
    sessions = make(slots=2)
    idle_one, busy = create(sessions, *range(9)), create(sessions, *range(9))
    go_on(sessions, busy, 1, now_ms=EVICTION_MS)
    assert create(sessions, 0, now_ms=EVICTION_MS) == 0
    assert create(sessions, 0, now_ms=EVICTION_MS + 1) == 3
    go_on(sessions, busy, 2, now_ms=EVICTION_MS + 1)
    with pytest.raises(FetchSessionIdNotFound):
        go_on(sessions, idle_one, 1)


def test_of_old_ones_the_smallest_makes_room_for_one_not_smaller() -> None:
    sessions = make(slots=2)
    small, large = create(sessions, 0, 1), create(sessions, 0, 1, 2, 3)
    for session_id in (small, large):
        go_on(sessions, session_id, 1, now_ms=EVICTION_MS)
    later = EVICTION_MS + MINUTE
    assert create(sessions, 0, now_ms=later) == 0
    assert create(sessions, 0, 1, now_ms=later) == 3
    assert set(sessions._sessions) == {large, 3}


def test_a_follower_may_replace_any_consumer_but_no_young_follower() -> None:
    sessions = make(slots=1)
    create(sessions, 0, 1, 2)
    assert create(sessions, 0, replica_id=7, now_ms=1) == 2
    assert create(sessions, *range(9), replica_id=8, now_ms=2) == 0
    go_on(sessions, 2, 1, now_ms=EVICTION_MS)
    assert create(sessions, *range(9), now_ms=EVICTION_MS + 5) == 0, "a consumer never replaces a follower"
    assert create(sessions, *range(9), replica_id=8, now_ms=EVICTION_MS + 5) == 3


def test_an_evicted_session_watches_nothing_any_more_even_if_a_request_is_under_way() -> None:
    sessions = make(slots=1)
    going = go_on(sessions, create(sessions, 0, 1), 1)
    looked_at = going.look(1, lambda: None)
    create(sessions, 0, replica_id=7)
    going.watch_also([(partition, tp(partition.key[2])) for partition in looked_at])
    assert len(sessions.delayed) == 0
    assert going.report([(looked_at[0], found(0, 5), False)]) == [0]


def test_what_all_sessions_remember_is_bounded() -> None:
    sessions = make(max_partitions=5)
    session_id = create(sessions, 0, 1, 2)
    assert create(sessions, 0, 1, 2) == 0
    with pytest.raises(FetchSessionIdNotFound):
        go_on(sessions, session_id, 1, 3, 4, 5)
    assert (len(sessions), sessions.partition_count) == (0, 0)


@pytest.mark.parametrize(
    ("healthy", "failing", "is_made"), [(MAX_FAILING + 1, 0, 1), (1, MAX_FAILING, 1), (1, MAX_FAILING + 1, 0)]
)
def test_no_session_is_made_of_too_many_failing_partitions(healthy: int, failing: int, is_made: int) -> None:
    told = [found(index, error=3 if index < failing else 0) for index in range(healthy + failing)]
    assert make().create(request(*range(len(told))), told, by_id=False, now_ms=0) == is_made


@pytest.mark.parametrize(("failing", "ends"), [(MAX_FAILING, False), (MAX_FAILING + 1, True)])
def test_session_ends_when_too_many_partitions_fail(failing: int, ends: bool) -> None:
    sessions = make()
    session_id = create(sessions, *range(MAX_FAILING + 2))
    going = go_on(sessions, session_id, 1)
    looked_at = look(going)
    report(going, *(found(index, error=3 if index < failing else 0) for index in looked_at))
    with pytest.raises(FetchSessionIdNotFound) if ends else nullcontext():
        go_on(sessions, session_id, 2)
