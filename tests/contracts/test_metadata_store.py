"""One contract, two implementations: the store in memory, and kazoo against an embedded ZooKeeper (with and without
a chroot)."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

import pytest

from kit.machine import scaled
from kit.stores import OpenStore, close_node
from kit.waiting import wait_until
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import (
    BadVersion,
    Check,
    Create,
    Delete,
    MetadataStore,
    NoChildrenForEphemerals,
    NodeChange,
    NodeEvent,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    Session,
    SessionEvent,
    SessionState,
    Set,
    StoreClosed,
    StoreError,
    StoreEvent,
    StoreUnauthorized,
    StoreUnavailable,
    WriteTooLarge,
)
from raylog.coordination.zookeeper.store import ZkStore

Events = SimpleQueue[StoreEvent]

pytestmark = pytest.mark.system


def expire(store: MetadataStore) -> None:
    """End the session as the server does, behind its client's back: another client takes it over and closes it."""
    if isinstance(store, MemoryStore):
        store._tree.expire(store.session.id)
    else:
        store.end_session(store.session)


def next_event(events: Events) -> StoreEvent:
    return events.get(timeout=scaled(10))


# --- nodes and versions


def test_too_large_write_is_refused_and_session_goes_on(store: MetadataStore) -> None:
    """ZooKeeper would close the connection, at each attempt."""
    large = b"x" * 2_000_000
    session = store.session
    events: Events = SimpleQueue()
    store.watch_session(events)
    store.create("/a")
    with pytest.raises(WriteTooLarge):
        store.create("/b", large)
    with pytest.raises(WriteTooLarge):
        store.set("/a", large)
    with pytest.raises(WriteTooLarge) as refused:
        store.multi([Check("/a", 0), *(Create(f"/a/{index}", b"x" * 400_000) for index in range(3))])
    assert refused.value.path.startswith("/a/")
    assert store.create("/b", b"x" * 900_000) == "/b"
    assert (store.children("/a"), store.session, events.empty()) == ([], session, True)


def test_a_node_has_data_and_a_version_that_each_set_raises(store: MetadataStore) -> None:
    assert store.get("/a") is None
    assert store.exists("/a") is None
    assert store.create("/a", b"one") == "/a"
    assert store.get("/a") == (b"one", 0)
    assert store.set("/a", b"two") == 1
    assert store.set("/a", b"three", 1) == 2
    assert store.get("/a") == (b"three", 2)
    stat = store.exists("/a")
    assert stat is not None
    assert (stat.version, stat.ephemeral_owner) == (2, 0)
    assert 0 < stat.created < stat.changed


def test_a_set_over_another_version_is_refused(store: MetadataStore) -> None:
    store.create("/a", b"one")
    store.set("/a", b"two")
    with pytest.raises(BadVersion) as caught:
        store.set("/a", b"three", 0)
    assert caught.value.path == "/a"
    assert store.get("/a") == (b"two", 1)


def test_what_is_made_twice_or_without_a_parent_is_refused(store: MetadataStore) -> None:
    store.create("/a")
    with pytest.raises(NodeExists):
        store.create("/a")
    with pytest.raises(NoNode):
        store.create("/b/c")
    assert store.create("/b/c", b"x", parents=True) == "/b/c"
    assert store.get("/b") == (b"", 0)


def test_deletion(store: MetadataStore) -> None:
    store.create("/a/b", parents=True)
    with pytest.raises(NotEmpty):
        store.delete("/a")
    with pytest.raises(BadVersion):
        store.delete("/a/b", 5)
    store.delete("/a/b", 0)
    store.delete("/a")
    with pytest.raises(NoNode):
        store.delete("/a")
    with pytest.raises(NoNode):
        store.set("/a", b"")


def test_children_are_sorted_names(store: MetadataStore) -> None:
    assert store.children("/a") == []
    for name in ("z", "m", "b"):
        store.create(f"/a/{name}", parents=True)
    assert store.children("/a") == ["b", "m", "z"]


def test_ensure_makes_what_is_missing_and_leaves_the_rest(store: MetadataStore) -> None:
    store.create("/a", b"kept")
    store.ensure("/a/b/c")
    store.ensure("/a/b/c")
    assert store.get("/a") == (b"kept", 0)
    assert store.children("/a/b") == ["c"]


def test_get_many_answers_in_order(store: MetadataStore) -> None:
    for index in range(20):
        store.create(f"/n{index}", str(index).encode())
    paths = [f"/n{index}" for index in (3, 99, 0, 19)]
    found = store.get_many(paths)
    assert [node and node.data for node in found] == [b"3", None, b"0", b"19"]
    store.set("/n3", b"", 0)
    assert store.get_many(paths * 300) == [(b"", 1), None, (b"0", 0), (b"19", 0)] * 300
    assert store.get_many([]) == []


def test_children_many_answers_in_order(store: MetadataStore) -> None:
    for path in ("/p/b", "/p/a", "/q/c"):
        store.create(path, parents=True)
    assert store.children_many(["/q", "/absent", "/p", "/p/a"] * 300) == [["c"], [], ["a", "b"], []] * 300
    assert store.children_many([]) == []


def test_exists_many_answers_in_order(store: MetadataStore) -> None:
    store.create("/b")
    store.create("/a", ephemeral=True)
    assert store.exists_many(["/b", "/absent", "/a"]) == [store.exists("/b"), None, store.exists("/a")]
    assert store.exists_many([]) == []


def test_node_that_is_closed_to_us_takes_no_other_with_it(store: MetadataStore) -> None:
    for path in ("/a", "/closed", "/b/c"):
        store.create(path, b"x", parents=True)
    close_node(store, "/closed")
    first, closed, absent, last = store.get_each(["/a", "/closed", "/absent", "/b"])
    assert (first, absent, last) == (store.get("/a"), None, store.get("/b"))
    assert isinstance(closed, StoreUnauthorized)
    assert closed.path == "/closed"
    closed_names, names, none = store.children_each(["/closed", "/b", "/absent"])
    assert (names, none) == (["c"], [])
    assert isinstance(closed_names, StoreUnauthorized)
    assert closed_names.path == "/closed"
    assert store.exists_many(["/closed", "/a"]) == [store.exists("/closed"), store.exists("/a")]
    for read in (store.get_many, store.children_many):
        with pytest.raises(StoreUnauthorized, match="/closed") as refused:
            read(["/a", "/closed"])
        assert refused.value.path == "/closed"


def test_sequential_nodes_are_numbered_upwards(store: MetadataStore) -> None:
    store.create("/q")
    made = [store.create("/q/n_", sequence=True) for _ in range(3)]
    assert made == sorted(made)
    assert all(path.startswith("/q/n_") and len(path) == len("/q/n_") + 10 for path in made)
    store.delete(made[2])
    assert store.create("/q/n_", sequence=True) > made[2]


def test_the_servers_clock_is_told_and_leaves_no_trace(store: MetadataStore) -> None:
    before = store.children("/")
    begun_ms = time.time_ns() // 1_000_000
    server_ms = store.server_time_ms()
    assert begun_ms <= server_ms <= time.time_ns() // 1_000_000
    assert store.children("/") == before


# --- multi


def test_a_multi_does_all_and_answers_each(store: MetadataStore) -> None:
    store.create("/a", b"")
    store.create("/gone")
    ops: list[Op] = [
        Check("/a", 0),
        Set("/a", b"x", 0),
        Create("/b", b"new"),
        Create("/s_", sequence=True),
        Delete("/gone"),
        Set("/a", b"y", 1),
    ]
    results = store.multi(ops)
    assert results[:3] == [None, 1, "/b"]
    assert str(results[3]).startswith("/s_")
    assert results[4:] == [None, 2]
    assert store.get("/a") == (b"y", 2)
    assert store.exists("/gone") is None


@pytest.mark.parametrize(
    ("op", "error"),
    [
        (Check("/a", 7), BadVersion),
        (Check("/none", 0), NoNode),
        (Set("/a", b"", 7), BadVersion),
        (Set("/none", b""), NoNode),
        (Create("/a"), NodeExists),
        (Create("/none/x"), NoNode),
        (Create("/first"), NodeExists),
        (Delete("/a", 7), BadVersion),
        (Delete("/parent"), NotEmpty),
    ],
    ids=repr,
)
def test_a_multi_that_fails_names_the_first_failure_and_changes_nothing(
    store: MetadataStore, op: Op, error: type[StoreError]
) -> None:
    store.create("/a", b"before")
    store.create("/parent/child", parents=True)
    ops: list[Op] = [
        Set("/a", b"during"),
        Set("/a", b"again"),
        Create("/first"),
        Delete("/parent/child"),
        Create("/parent/x"),
        op,
        Check("/a", 99),
    ]
    with pytest.raises(error) as caught:
        store.multi(ops)
    assert (caught.value.index, caught.value.path) == (5, op.path)
    assert store.get("/a") == (b"before", 0)
    assert store.children("/parent") == ["child"]
    assert store.exists("/first") is None


# --- ephemerals and sessions


def test_ephemerals_live_as_long_as_their_session(open_store: OpenStore) -> None:
    mine, other = open_store(), open_store()
    mine.create("/e", b"x", ephemeral=True)
    stat = other.exists("/e")
    assert stat is not None
    assert stat.ephemeral_owner == mine.session.id != other.session.id
    with pytest.raises(NoChildrenForEphemerals):
        mine.create("/e/child")
    gone: Events = SimpleQueue()
    other.exists("/e", gone)
    mine.close()
    assert next_event(gone) == NodeEvent("/e", NodeChange.DELETED)
    assert other.exists("/e") is None


def test_a_session_left_behind_is_ended_by_who_has_its_password(open_store: OpenStore) -> None:
    crashed, heir = open_store(), open_store()
    crashed.create("/e", ephemeral=True)
    left = crashed.session
    heir.end_session(Session(left.id, b"\0" * len(left.password)))
    assert heir.exists("/e") is not None

    def ended() -> bool:
        heir.end_session(left)
        return heir.exists("/e") is None

    # Its owner lives here, and may take the session back while it is being ended, as one that crashed does not.
    wait_until(ended, 10, "the session has ended")
    heir.end_session(left)  # and once more: it has ended
    heir.create("/e", ephemeral=True)


def test_abandoned_session_lives_on_without_its_store(open_store: OpenStore) -> None:
    abandoned, other = open_store(), open_store()
    abandoned.create("/e", ephemeral=True)
    left = abandoned.session
    threads = threading.active_count()
    abandoned.abandon()
    assert isinstance(abandoned, MemoryStore) or threading.active_count() < threads, "those of its client have ended"
    with pytest.raises(StoreClosed):
        abandoned.heartbeat()
    abandoned.close()
    other.heartbeat()
    stat = other.exists("/e")
    assert stat is not None
    assert stat.ephemeral_owner == left.id
    other.end_session(left)
    assert other.exists("/e") is None


def test_a_lost_session_is_told_and_replaced(open_store: OpenStore) -> None:
    store, other = open_store(), open_store()
    events: Events = SimpleQueue()
    store.watch_session(events)
    store.create("/e", ephemeral=True)
    store.heartbeat()
    first = store.session
    expire(store)
    seen: list[SessionEvent] = []
    while not seen or seen[-1].state is not SessionState.CONNECTED:
        event = next_event(events)
        assert isinstance(event, SessionEvent)
        seen.append(event)
    assert [event.state for event in seen] == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
    assert [event.session_id for event in seen[:2]] == [first.id, first.id]
    assert seen[2].session_id == store.session.id != first.id
    assert store.last_acknowledged_send_ms is None
    assert other.exists("/e") is None
    store.create("/e", ephemeral=True)


def test_a_heartbeat_tells_when_it_was_sent(store: MetadataStore) -> None:
    assert not store.last_acknowledged_send_ms
    first = store.heartbeat()
    assert store.last_acknowledged_send_ms == first
    second = store.heartbeat()
    assert second >= first
    assert store.last_acknowledged_send_ms == second


def test_a_closed_store_refuses(open_store: OpenStore) -> None:
    store = open_store()
    assert store.session_timeout_ms > 0
    store.close()
    store.close()
    with pytest.raises(StoreClosed):
        store.get("/a")
    with pytest.raises(StoreClosed):
        store.heartbeat()


def test_a_store_that_was_not_started_has_no_session() -> None:
    for store in (MemoryStore(MemoryTree()), ZkStore("127.0.0.1:1")):
        with pytest.raises(StoreUnavailable):
            store.session  # noqa: B018
        with pytest.raises(StoreUnavailable):
            store.get("/a")


# --- watches


@pytest.mark.parametrize("read", ["get", "exists"])
def test_a_read_watches_for_the_next_change_of_the_node(open_store: OpenStore, read: str) -> None:
    store, other = open_store(), open_store()
    events: Events = SimpleQueue()
    look = store.get if read == "get" else store.exists
    look("/a", events)
    other.create("/a")
    assert next_event(events) == NodeEvent("/a", NodeChange.CREATED)
    other.set("/a", b"not watched")
    look("/a", events)
    other.set("/a", b"x")
    assert next_event(events) == NodeEvent("/a", NodeChange.CHANGED)
    look("/a", events)
    other.delete("/a")
    assert next_event(events) == NodeEvent("/a", NodeChange.DELETED)
    assert events.empty()


def test_children_are_watched(open_store: OpenStore) -> None:
    store, other = open_store(), open_store()
    events: Events = SimpleQueue()
    assert store.children("/p", events) == []
    other.create("/p")
    assert next_event(events) == NodeEvent("/p", NodeChange.CREATED)
    store.children("/p", events)
    other.set("/p", b"data is not a child")
    other.create("/p/a")
    assert next_event(events) == NodeEvent("/p", NodeChange.CHILDREN)
    store.children("/p", events)
    other.delete("/p/a")
    assert next_event(events) == NodeEvent("/p", NodeChange.CHILDREN)
    store.children("/p", events)
    other.delete("/p")
    assert next_event(events) == NodeEvent("/p", NodeChange.DELETED)
    assert events.empty()


def test_a_sink_that_watches_a_node_twice_is_told_once(open_store: OpenStore) -> None:
    store, other = open_store(), open_store()
    mine, yours = SimpleQueue[StoreEvent](), SimpleQueue[StoreEvent]()
    store.get("/a", mine)
    store.get("/a", mine)
    store.get("/a", yours)
    other.create("/a")
    assert next_event(mine) == next_event(yours) == NodeEvent("/a", NodeChange.CREATED)
    store.get("/a", mine)
    other.delete("/a")
    assert next_event(mine) == NodeEvent("/a", NodeChange.DELETED)
    assert yours.empty()


def test_a_multi_fires_watches_only_when_it_succeeds(open_store: OpenStore) -> None:
    store, other = open_store(), open_store()
    events: Events = SimpleQueue()
    store.create("/a")
    store.get("/a", events)
    with pytest.raises(BadVersion):
        other.multi([Set("/a", b"x"), Check("/a", 9)])
    other.multi([Create("/b"), Delete("/a")])
    assert next_event(events) == NodeEvent("/a", NodeChange.DELETED)


def test_watches_end_with_the_connection(open_store: OpenStore) -> None:
    """Who watches reads again at CONNECTED; a watch from before must not fire then."""
    store, other = open_store(), open_store()
    session, nodes = SimpleQueue[StoreEvent](), SimpleQueue[StoreEvent]()
    store.watch_session(session)
    store.get("/a", nodes)
    expire(store)
    while next_event(session) != SessionEvent(SessionState.CONNECTED, store.session.id):
        pass
    other.create("/a")
    assert store.get("/a") == (b"", 0)
    store.get("/a", nodes)
    other.set("/a", b"x")
    assert next_event(nodes) == NodeEvent("/a", NodeChange.CHANGED)
    assert nodes.empty()


def test_compare_and_set_counts_right_under_contention(open_store: OpenStore) -> None:
    stores = [open_store() for _ in range(3)]
    stores[0].create("/count", b"0")

    def add(store: MetadataStore) -> None:
        done = 0
        while done < 20:
            found = store.get("/count")
            assert found is not None
            try:
                store.set("/count", b"%d" % (int(found.data) + 1), found.version)
                done += 1
            except BadVersion:
                pass

    threads = [threading.Thread(target=add, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].get("/count") == (b"60", 60)
