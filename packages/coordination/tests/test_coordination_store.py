"""What is kept in the store, by those who keep it: elections, configs, producer ids, the cluster's base; the lease."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from queue import SimpleQueue
from uuid import UUID

import pytest

from kit.topics import stored_configs
from raylog.coordination.membership.election import Mandate, campaign, current_controller, resign
from raylog.coordination.membership.lease import Lease
from raylog.coordination.membership.registration import FEATURE_LEVEL, ensure_cluster
from raylog.coordination.metadata import configs, paths, snapshot
from raylog.coordination.metadata.producer_ids import BLOCK_SIZE, ProducerIdAllocator
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import (
    BadVersion,
    Check,
    Create,
    Delete,
    EventSink,
    MetadataStore,
    NodeChange,
    NodeEvent,
    NoNode,
    SessionEvent,
    SessionExpired,
    SessionState,
    Set,
    StoreEvent,
    StoreUnavailable,
)
from raylog.protocol.errors import InvalidConfig, UnsupportedVersion
from raylog.protocol.ids import BrokerId, MonotonicMs, TimestampMs, TopicId, TopicName

NOW = TimestampMs(1_700_000_000_000)
FLIGHTS = TopicName("flights")


class Clock:
    """A monotonic clock that is turned by hand."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> MonotonicMs:
        return MonotonicMs(self.now_ms)


@pytest.fixture
def tree() -> MemoryTree:
    tree = MemoryTree()
    with MemoryStore(tree) as store:
        ensure_cluster(store, "the-cluster")
    return tree


def client(tree: MemoryTree) -> MemoryStore:
    store = MemoryStore(tree)
    store.start()
    return store


def run(store: MemoryStore, broker_id: int, sink: SimpleQueue[StoreEvent] | None = None) -> Mandate | None:
    return campaign(store, BrokerId(broker_id), NOW, sink or SimpleQueue())


# --- the base


def test_the_cluster_gets_an_id_once(tree: MemoryTree) -> None:
    assert ensure_cluster(client(tree), "another") == "the-cluster"
    assert len(ensure_cluster(client(MemoryTree()))) == 22


def test_a_cluster_at_a_newer_feature_level_is_left_alone(tree: MemoryTree) -> None:
    store = client(tree)
    store.set(paths.FEATURE_LEVEL, paths.encode_number(FEATURE_LEVEL + 1))
    with pytest.raises(UnsupportedVersion, match="upgrade this broker"):
        ensure_cluster(store)


# --- elections


def test_one_candidate_wins_and_the_epoch_rises(tree: MemoryTree) -> None:
    first, second = client(tree), client(tree)
    events: SimpleQueue[StoreEvent] = SimpleQueue()
    assert current_controller(first) is None
    won = run(first, 1)
    assert won is not None
    assert won.epoch == 1
    assert run(second, 2, events) is None
    assert current_controller(second) == 1
    first.close()
    assert events.get_nowait() == NodeEvent(paths.CONTROLLER, NodeChange.DELETED)
    won_later = run(second, 2)
    assert won_later is not None
    assert (won_later.epoch, won_later.epoch_version) == (won.epoch + 1, won.epoch_version + 1)


def test_campaigning_again_gives_the_same_mandate(tree: MemoryTree) -> None:
    store = client(tree)
    assert run(store, 1) == run(store, 1) is not None


def test_a_win_whose_answer_was_lost_is_recognised(tree: MemoryTree) -> None:
    store, reads = client(tree), iter(range(3))
    store.before_answer = lambda: store.lose_next_answer() if next(reads) == 1 else None
    with pytest.raises(StoreUnavailable):
        run(store, 1)
    store.before_answer = None
    assert current_controller(store) == 1
    won = run(store, 1)
    assert won is not None
    assert won.epoch == 1


def test_a_deposed_controllers_write_fails(tree: MemoryTree) -> None:
    old, new = client(tree), client(tree)
    mandate = run(old, 1)
    assert mandate is not None
    old.create("/decision", b"")
    resign(old)
    assert run(new, 2) is not None
    with pytest.raises(BadVersion) as caught:
        old.multi([Check(paths.CONTROLLER_EPOCH, mandate.epoch_version), Set("/decision", b"stale")])
    assert caught.value.path == paths.CONTROLLER_EPOCH
    resign(old)  # not its own any more
    assert current_controller(new) == 2


# --- configs


def replaced_by(**overrides: str) -> configs.Change:
    """Whatever the overrides are, these are wanted; "_" stands for "."."""
    return lambda old: {name.replace("_", "."): value for name, value in overrides.items()}


def taken(store: MetadataStore, watch: EventSink | None = None) -> tuple[configs.ConfigChange, ...]:
    """What changed since the last call, as a controller takes it in."""
    found = configs.read_changes(store, watch)
    for notice in found.notices:
        store.delete(notice)
    return found.changes


def test_overrides_are_changed_and_told_of(tree: MemoryTree) -> None:
    store, events = client(tree), SimpleQueue[StoreEvent]()
    store.create(paths.topic_config(FLIGHTS), paths.encode_config({}))
    assert taken(store, events) == ()
    configs.alter_topic_configs(store, FLIGHTS, replaced_by(retention_ms="1"))
    assert events.get_nowait() == NodeEvent(paths.CONFIG_CHANGES, NodeChange.CHILDREN)
    assert configs.alter_topic_configs(store, FLIGHTS, lambda old: {**old, "flush.ms": "2"}) == {
        "retention.ms": "1",
        "flush.ms": "2",
    }
    configs.alter_broker_configs(store, configs.DEFAULT_BROKER, replaced_by(num_partitions="3"))
    configs.alter_broker_configs(store, "7", replaced_by(num_partitions="4"))
    assert taken(store) == (
        configs.ConfigChange(FLIGHTS, None, {"retention.ms": "1", "flush.ms": "2"}),
        configs.ConfigChange(None, "<default>", {"num.partitions": "3"}),
        configs.ConfigChange(None, "7", {"num.partitions": "4"}),
    )
    assert taken(store) == ()
    assert stored_configs(store, paths.topic_config(FLIGHTS)) == {"retention.ms": "1", "flush.ms": "2"}
    assert snapshot.load(store).state.broker_configs == {
        "<default>": {"num.partitions": "3"},
        "7": {"num.partitions": "4"},
    }


def test_two_who_change_overrides_at_once_both_have_their_way(tree: MemoryTree) -> None:
    store, other = client(tree), client(tree)
    store.create(paths.topic_config(FLIGHTS), paths.encode_config({}))
    seen: list[dict[str, str]] = []

    def change(old: Mapping[str, str]) -> dict[str, str]:
        if not seen:  # between our read and our write
            configs.alter_topic_configs(other, FLIGHTS, replaced_by(retention_ms="1"))
        seen.append(dict(old))
        return {**old, "flush.ms": "2"}

    configs.alter_topic_configs(store, FLIGHTS, change)
    assert seen == [{}, {"retention.ms": "1"}]
    assert stored_configs(store, paths.topic_config(FLIGHTS)) == {"retention.ms": "1", "flush.ms": "2"}


def test_a_change_that_changes_nothing_or_is_refused_leaves_no_notice(tree: MemoryTree) -> None:
    store = client(tree)
    configs.alter_broker_configs(store, "7", lambda old: old)

    def refuse(old: Mapping[str, str]) -> Mapping[str, str]:
        raise InvalidConfig("no")

    with pytest.raises(InvalidConfig):
        configs.alter_broker_configs(store, "7", refuse)
    assert taken(store) == ()


def test_overrides_of_a_topic_that_is_not_there_are_refused(tree: MemoryTree) -> None:
    store = client(tree)
    with pytest.raises(NoNode):
        configs.alter_topic_configs(store, FLIGHTS, replaced_by(retention_ms="1"))
    assert taken(store) == ()
    assert stored_configs(store, paths.topic_config(FLIGHTS)) == {}


def test_a_notice_that_nobody_can_read_is_dropped_and_the_others_are_taken(tree: MemoryTree) -> None:
    store = client(tree)
    store.create(paths.CONFIG_CHANGE_PREFIX, b"not JSON", sequence=True)
    store.create(paths.CONFIG_CHANGE_PREFIX, b'{"version":1,"entity_type":"topics"}', sequence=True)
    configs.alter_broker_configs(store, "7", replaced_by(num_partitions="4"))
    assert taken(store) == (configs.ConfigChange(None, "7", {"num.partitions": "4"}),)
    assert store.children(paths.CONFIG_CHANGES) == []


# --- producer ids


def test_no_producer_id_is_given_out_twice(tree: MemoryTree) -> None:
    allocators = [ProducerIdAllocator(client(tree), BrokerId(n)) for n in range(3)]
    taken: list[int] = []

    def take(allocator: ProducerIdAllocator) -> None:
        taken.extend([allocator.next() for _ in range(2 * BLOCK_SIZE + 1)])

    threads = [threading.Thread(target=take, args=(allocator,)) for allocator in allocators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == len(taken) == 3 * (2 * BLOCK_SIZE + 1)


def test_a_block_whose_answer_was_lost_is_left_out(tree: MemoryTree) -> None:
    store = client(tree)
    ProducerIdAllocator(store, BrokerId(1)).next()
    reads = iter(range(2))
    store.before_answer = lambda: store.lose_next_answer() if next(reads, 1) == 0 else None
    allocator = ProducerIdAllocator(store, BrokerId(1))
    with pytest.raises(StoreUnavailable):
        allocator.next()
    assert allocator.next() == 2 * BLOCK_SIZE


# --- the lease


def test_a_lease_runs_from_when_the_heartbeat_was_sent_not_from_its_answer(tree: MemoryTree) -> None:
    """The naive way renews at the answer. Then a slow answer prolongs a lease beyond the session's end (D9c)."""
    clock, lease = Clock(), Lease(fraction=0.6)
    store = MemoryStore(tree, session_timeout_ms=10_000, clock=clock)
    store.start()
    sent_at = clock()

    def the_answer_is_slow() -> None:
        clock.now_ms += 5_900

    store.before_answer = the_answer_is_slow
    lease.renew(store.heartbeat(), store.session_timeout_ms)
    assert lease.expires_ms == sent_at + 6_000
    assert lease.held(clock())
    clock.now_ms += 101
    assert not lease.held(clock())
    naive_expiry = sent_at + 5_900 + 6_000
    assert naive_expiry > sent_at + store.session_timeout_ms  # the server would have ended the session before


def test_a_lease_is_not_held_before_it_is_renewed_nor_after_it_is_revoked() -> None:
    clock, lease = Clock(), Lease()
    assert not lease.held(clock())
    lease.renew(clock(), 6_000)
    assert lease.held(clock())
    lease.revoke()
    assert not lease.held(clock())


def test_a_heartbeat_of_another_session_counts_for_nothing(tree: MemoryTree) -> None:
    store = client(tree)
    store.heartbeat()
    store.before_answer = lambda: tree.expire(store.session.id)
    with pytest.raises(SessionExpired):
        store.heartbeat()
    assert store.last_acknowledged_send_ms is None


# --- the script of the store in memory


def test_a_cut_client_learns_of_its_lost_session_when_it_is_back(tree: MemoryTree) -> None:
    store, other = client(tree), client(tree)
    events: SimpleQueue[StoreEvent] = SimpleQueue()
    store.watch_session(events)
    store.create("/e", ephemeral=True)
    store.suspend()
    with pytest.raises(StoreUnavailable):
        store.get("/e")
    tree.expire(store.session.id)
    assert other.exists("/e") is None
    store.resume()
    states = [events.get_nowait() for _ in range(3)]
    assert [event.state for event in states if isinstance(event, SessionEvent)] == [
        SessionState.SUSPENDED,
        SessionState.LOST,
        SessionState.CONNECTED,
    ]


def test_a_short_cut_keeps_the_session_and_drops_the_watches(tree: MemoryTree) -> None:
    store, other = client(tree), client(tree)
    events: SimpleQueue[StoreEvent] = SimpleQueue()
    session = store.session
    store.get("/a", events)
    store.suspend()
    other.create("/a")
    store.resume()
    assert store.session == session
    assert events.empty()
    assert store.exists("/a") is not None


def test_an_abandoned_session_lives_until_it_expires(tree: MemoryTree) -> None:
    dead, other = client(tree), client(tree)
    dead.create("/e", ephemeral=True)
    dead.abandon()
    assert other.exists("/e") is not None
    tree.expire(dead.session.id)
    assert other.exists("/e") is None


# --- reading it all


def test_a_snapshot_leaves_out_what_is_half_gone(tree: MemoryTree) -> None:
    store = client(tree)
    store.create(paths.broker(BrokerId(5)), b'{"endpoints":["PLAINTEXT://h:1"]}')  # no incarnation yet
    assignment = paths.TopicAssignment(TopicId(UUID(int=1)), ((BrokerId(5),),))
    store.create(paths.topic(FLIGHTS), paths.encode_topic(assignment))
    store.create(paths.delete_topic(TopicName("old")))
    state, deleting, _ = snapshot.load(store)
    assert state.cluster_id == "the-cluster"
    assert state.brokers == {}
    [partition] = state.topics[FLIGHTS].partitions
    assert (partition.version, partition.leader, partition.replicas) == (-1, -1, (5,))
    assert deleting == {"old"}


# --- a server that is behind


def behind(tree: MemoryTree) -> MemoryStore:
    """A client whose server has seen /a at version 0 with the child b, and nothing of what comes then."""
    other = client(tree)
    other.create("/a", b"old")
    other.create("/a/b")
    store = client(tree)
    store.fall_behind()
    return store


def write_on(tree: MemoryTree) -> None:
    other = client(tree)
    other.set("/a", b"new")
    other.set("/a", b"newer")
    other.create("/a/c")
    other.delete("/a/b")
    other.create("/new")


def test_server_behind_shows_what_was(tree: MemoryTree) -> None:
    store = behind(tree)
    write_on(tree)
    assert (store.get("/a"), store.children("/a"), store.exists("/new")) == ((b"old", 0), ["b"], None)
    assert store.get_many(["/a", "/a/b", "/a/c"]) == [(b"old", 0), (b"", 0), None]
    assert (store.children_many(["/a", "/new"]), store.exists_many(["/a/c"])) == ([["b"], []], [None])
    assert client(tree).get("/a") == (b"newer", 2)


@pytest.mark.parametrize("by", ["sync", "write", "refused write", "ensure", "itself", "connection"])
def test_server_behind_catches_up(tree: MemoryTree, by: str) -> None:
    store = behind(tree)
    write_on(tree)
    match by:
        case "sync":
            store.heartbeat()
        case "write":
            store.create("/mine")
        case "refused write":
            with pytest.raises(BadVersion):
                store.set("/a", b"", 0)
        case "ensure":
            store.ensure("/a/mine")
            store.delete("/a/mine")
        case "itself":
            store.catch_up()
        case _:
            store.suspend()
            store.resume()
    assert (store.get("/a"), store.children("/a")) == ((b"newer", 2), ["c"])
    assert store.exists("/new") is not None


def test_server_behind_tells_watches_later_what_they_missed(tree: MemoryTree) -> None:
    store = behind(tree)
    sinks = {name: SimpleQueue[StoreEvent]() for name in ("before", "data", "children", "gone", "made", "same")}
    store.catch_up()
    store.get("/a", sinks["before"])
    store.fall_behind()
    write_on(tree)
    store.get("/a", sinks["data"])
    store.children("/a", sinks["children"])
    store.exists("/a/b", sinks["gone"])
    store.exists("/new", sinks["made"])
    store.exists("/same", sinks["same"])
    assert all(sink.empty() for sink in sinks.values())
    store.heartbeat()
    assert sinks["before"].get_nowait() == sinks["data"].get_nowait() == NodeEvent("/a", NodeChange.CHANGED)
    assert sinks["children"].get_nowait() == NodeEvent("/a", NodeChange.CHILDREN)
    assert sinks["gone"].get_nowait() == NodeEvent("/a/b", NodeChange.DELETED)
    assert sinks["made"].get_nowait() == NodeEvent("/new", NodeChange.CREATED)
    assert all(sink.empty() for sink in sinks.values())
    store.create("/same")
    assert sinks["same"].get_nowait() == NodeEvent("/same", NodeChange.CREATED)


def test_server_behind_tells_first_that_a_node_made_anew_was_deleted(tree: MemoryTree) -> None:
    store, sink = behind(tree), SimpleQueue[StoreEvent]()
    other = client(tree)
    other.multi([Delete("/a/b"), Create("/a/b", b"again")])
    assert store.get("/a/b", sink) == (b"", 0)
    store.catch_up()
    assert sink.get_nowait() == NodeEvent("/a/b", NodeChange.DELETED)
    assert store.get("/a/b") == (b"again", 0)


def test_multi_that_failed_leaves_nothing_to_see_behind(tree: MemoryTree) -> None:
    store = behind(tree)
    other = client(tree)
    with pytest.raises(BadVersion):
        other.multi([Create("/a/x"), Delete("/a/b"), Set("/a", b"no"), Check("/a", 9)])
    for reader in (store, other):
        assert (reader.get("/a"), reader.children("/a")) == ((b"old", 0), ["b"])
