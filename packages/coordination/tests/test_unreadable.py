"""Nodes that a foreign tool, an old version or a slip of the hand left: they harm what they are about, and no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

from kit.controlled import ControlledCluster, Nowhere, assert_agreement, created, partition, topic
from kit.stores import Closed, close_node
from kit.topics import put_topic, stored_configs
from raylog.coordination.control.peer_control import Receiver, local_changes
from raylog.coordination.controller.events import ConfigChanged, CreatedTopic, Deposed, Loaded, Reload
from raylog.coordination.groups import nodes as group_nodes
from raylog.coordination.groups.kinds import GroupKind, settle_kind
from raylog.coordination.groups.offsets import CommittedOffset, RegistryOffsetStore
from raylog.coordination.membership import election
from raylog.coordination.membership.registration import BrokerRegistration, SessionFile
from raylog.coordination.metadata import configs, group_paths, paths, snapshot
from raylog.coordination.metadata.model import BrokerInfo, ClusterState, PartitionState, TopicState
from raylog.coordination.metadata.producer_ids import BLOCK_SIZE, ProducerIdAllocator
from raylog.coordination.store import unreadable
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import BadVersion, Check
from raylog.coordination.store.trees import delete_tree
from raylog.protocol.errors import EligibleLeadersNotAvailable, TopicAlreadyExists
from raylog.protocol.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    GroupId,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)

FLIGHTS, OTHER = TopicName("flights"), TopicName("other")
TP = TopicPartition(FLIGHTS, PartitionIndex(0))


@pytest.fixture
def cluster() -> ControlledCluster:
    """Three brokers, a topic with three replicas of two partitions, and another one."""
    cluster = ControlledCluster()
    cluster.elect()
    created(cluster, topic("flights", 2, replication_factor=3), topic("other", 2, replication_factor=3))
    cluster.deliver()
    return cluster


def plant(cluster: ControlledCluster, path: str, data: bytes = b"") -> None:
    """What somebody else writes."""
    if cluster.store.exists(path) is None:
        cluster.store.create(path, data, parents=True)
    else:
        cluster.store.set(path, data)


def reload(cluster: ControlledCluster) -> None:
    cluster.feed(Loaded(*snapshot.load(cluster.store)))
    cluster.deliver()


def assert_elects(cluster: ControlledCluster) -> None:
    """A dead leader is replaced."""
    leader = partition(cluster, OTHER).leader
    cluster.lose(leader)
    cluster.deliver()
    assert partition(cluster, OTHER).leader not in (leader, NO_LEADER)
    assert cluster.controller.is_active
    assert_agreement(cluster)


OLD = TopicName("old")


def plant_old_topic(cluster: ControlledCluster, *, ephemeral: bool = False) -> None:
    """An older tool makes a topic, whose partitions the controller is to give states."""
    replicas = (BrokerId(2), BrokerId(1), BrokerId(3))
    assignment = paths.encode_topic(paths.TopicAssignment(TopicId(UUID(int=5)), (replicas,)))
    cluster.store.create(paths.topic(OLD), assignment, ephemeral=ephemeral)


def assert_works(cluster: ControlledCluster, told: TopicName) -> None:
    """Topics are made and leaders elected; people were told once of the topic that cannot be written."""
    assert [notice.fields.get("topic") for notice in cluster.notices] == [told]
    created(cluster, topic("new"))
    assert TopicName("new") in cluster.controller.state.topics
    assert_elects(cluster)
    assert len(cluster.notices) == 1


def test_topic_that_takes_no_children_stops_no_other(cluster: ControlledCluster) -> None:
    plant_old_topic(cluster, ephemeral=True)
    reload(cluster)
    assert_works(cluster, OLD)


def test_topic_that_is_closed_to_us_stops_no_other(cluster: ControlledCluster) -> None:
    plant_old_topic(cluster)
    cluster.store = Closed(cluster.tree, f"{paths.topic(OLD)}/")
    reload(cluster)
    assert_works(cluster, OLD)
    cluster.store = MemoryStore(cluster.tree)
    cluster.store.start()
    reload(cluster)
    assert partition(cluster, OLD).is_online, "each reading tries again"


def test_deletion_of_what_is_closed_to_us_stops_no_other(cluster: ControlledCluster) -> None:
    plant(cluster, f"{paths.topic(FLIGHTS)}/theirs/x")
    cluster.store = Closed(cluster.tree, f"{paths.topic(FLIGHTS)}/theirs")
    cluster.delete(FLIGHTS)
    cluster.deliver()
    assert [notice.fields.get("topic") for notice in cluster.notices] == [FLIGHTS]
    assert isinstance(created(cluster, topic("new"))[0], CreatedTopic)
    leader = partition(cluster, OTHER).leader
    cluster.lose(leader)
    assert partition(cluster, OTHER).leader not in (leader, NO_LEADER)
    cluster.store = MemoryStore(cluster.tree)
    cluster.store.start()
    reload(cluster)
    assert cluster.store.exists(paths.topic(FLIGHTS)) is None, "each reading tries again"


@pytest.mark.parametrize(
    "path",
    [
        paths.topic(FLIGHTS),
        paths.topic_config(FLIGHTS),
        paths.partition_state(TP),
        paths.topic_id(TopicId(UUID(int=7))),
        f"{paths.CONFIG_CHANGES}/config_change_0000000001",
        paths.broker_config("1"),
        paths.broker_config(configs.DEFAULT_BROKER),
        paths.broker(BrokerId(9)),
        paths.CLUSTER_ID,
    ],
)
def test_node_that_may_not_be_read_stops_no_other(cluster: ControlledCluster, path: str) -> None:
    """Another program's access rights forbid it."""
    cluster.store.ensure(path)
    close_node(cluster.store, path)
    with unreadable.collecting() as told:
        changes = configs.read_changes(cluster.store)
        reload(cluster)
    assert {*told.known} == {path}
    assert path in changes.notices or not path.startswith(paths.CONFIG_CHANGES)
    assert_elects(cluster)
    assert isinstance(created(cluster, topic("new"))[0], CreatedTopic)


def test_state_that_is_closed_to_us_stops_no_other(cluster: ControlledCluster) -> None:
    cluster.store = Closed(cluster.tree, paths.partition_state(TP))
    leader = partition(cluster).leader
    cluster.lose(leader)
    cluster.deliver()
    assert partition(cluster).leader == leader, "it cannot be written"
    others = [(FLIGHTS, 1), (OTHER, 0), (OTHER, 1)]
    assert leader not in [partition(cluster, *other).leader for other in others]
    assert_works(cluster, FLIGHTS)
    assert cluster.controller.awaits_reading
    cluster.store = MemoryStore(cluster.tree)
    cluster.store.start()
    reload(cluster)
    assert partition(cluster).leader != leader, "each reading tries again"
    assert not cluster.controller.awaits_reading


def test_unexpected_refusal_is_told(cluster: ControlledCluster) -> None:
    cluster.store = Closed(cluster.tree, paths.DELETE_TOPICS)
    cluster.delete(FLIGHTS)
    [notice] = cluster.notices
    assert "refused" in notice.text
    assert notice.fields["path"] == paths.delete_topic(FLIGHTS)


class Foreign(NamedTuple):
    path: str
    data: bytes = b""


FOREIGN = (
    Foreign("/brokers/ids/abc"),
    Foreign("/brokers/ids/-1", b"{}"),
    Foreign("/brokers/ids/007", b"{}"),
    Foreign("/brokers/ids/9", b'{"version":5,"endpoints":["PLAINTEXT://h:1"]}'),
    Foreign("/brokers/topics/empty"),
    Foreign("/brokers/topics/a b", b'{"partitions":{}}'),
    Foreign("/brokers/topics/none", b'{"version":1,"partitions":{"0":[]}}'),
    Foreign("/brokers/topics/flights/left/behind", b"x"),
    Foreign("/brokers/topics/flights/partitions/0/state/child", b"x"),
    Foreign("/brokers/topics/flights/partitions/abc", b"x"),
    Foreign("/admin/delete_topics/a b"),
    Foreign("/admin/delete_topics/never-there/child"),
    Foreign("/config/changes/config_change_0000000000", b'{"version":2,"entity_path":"topics/.."}'),
    Foreign("/config/changes/config_change_0000000001/child", b"{}"),
    Foreign("/config/changes/abc", b"\xff"),
    Foreign("/config/brokers/abc", b'{"config":{"a":"b"}}'),
    Foreign("/config/brokers/1", b"["),
    Foreign("/config/topics/flights", b'{"config":[]}'),
    Foreign("/cluster/id", b"\xff"),
    Foreign("/raylog/brokers/1/child"),
)


@pytest.mark.parametrize("foreign", FOREIGN, ids=lambda foreign: foreign.path)
def test_foreign_node_stops_no_election(cluster: ControlledCluster, foreign: Foreign) -> None:
    plant(cluster, *foreign)
    cluster.take_notices()
    cluster.brokers_changed()
    reload(cluster)
    assert {FLIGHTS, OTHER} <= cluster.controller.state.topics.keys()
    assert_elects(cluster)


def test_deletion_removes_what_others_left_below(cluster: ControlledCluster) -> None:
    plant(cluster, "/brokers/topics/flights/partitions/0/orphan/child")
    plant(cluster, "/config/topics/flights/child")
    cluster.delete(FLIGHTS)
    cluster.deliver()
    for path in (paths.topic(FLIGHTS), paths.topic_config(FLIGHTS), paths.delete_topic(FLIGHTS)):
        assert cluster.store.exists(path) is None, path
    assert FLIGHTS not in cluster.controller.state.topics
    assert_elects(cluster)


def test_deletion_left_half_done_with_an_orphan_is_completed(cluster: ControlledCluster) -> None:
    delete_tree(cluster.store, "/brokers/topics/flights/partitions/0")
    plant(cluster, "/brokers/topics/flights/partitions/orphan")
    plant(cluster, paths.delete_topic(FLIGHTS))
    reload(cluster)
    assert cluster.store.exists(paths.topic(FLIGHTS)) is None
    assert_elects(cluster)


def test_unreadable_topic_is_kept_refused_and_deletable(cluster: ControlledCluster) -> None:
    plant(cluster, paths.topic(FLIGHTS), b"?")
    reload(cluster)
    state = cluster.controller.state
    assert (FLIGHTS in state.topics, state.unreadable) == (False, {FLIGHTS})
    assert not snapshot.strange_topics(cluster.store, state, Nowhere())
    assert all(broker.receiver.state.unreadable == {FLIGHTS} for broker in cluster.brokers.values())
    refused = cluster.create(topic("flights"))
    assert isinstance(cluster.replies[refused][0], TopicAlreadyExists)
    cluster.delete(FLIGHTS)
    cluster.deliver()
    assert cluster.store.exists(paths.topic(FLIGHTS)) is None
    assert not cluster.controller.state.unreadable
    assert_elects(cluster)


def test_broker_keeps_replicas_of_an_unreadable_topic() -> None:
    one, topic_id = BrokerId(1), TopicId(UUID(int=1))
    state = PartitionState((one,), one, isr=(one,), version=0)
    before = ClusterState().with_topics(TopicState(FLIGHTS, topic_id, (state,)))
    after = ClusterState(unreadable=frozenset({FLIGHTS}))
    changes = local_changes(one, before, after)
    assert (changes.deleted, changes.no_replica) == ((), ())
    assert changes.unreadable == ((TP, topic_id),)
    [lead] = local_changes(one, after, before).lead
    assert lead.tp == TP, "it goes on once the node is mended"


def test_unreadable_state_takes_its_partition_offline_alone(cluster: ControlledCluster) -> None:
    good = cluster.store.get(paths.partition_state(TP))
    assert good is not None
    plant(cluster, paths.partition_state(TP), b"\xff")
    reload(cluster)
    assert partition(cluster).leader == NO_LEADER
    assert partition(cluster, FLIGHTS, 1).is_online
    token = cluster.elect_leaders(TP, unclean=True)
    assert isinstance(cluster.replies[token][0], EligibleLeadersNotAvailable)
    found = cluster.store.get(paths.partition_state(TP))
    assert found is not None
    assert found.data == b"\xff", "nobody writes over what somebody may have to mend"
    assert_elects(cluster)
    plant(cluster, paths.partition_state(TP), good.data)
    reload(cluster)
    assert partition(cluster).is_online


def test_partition_that_lost_its_state_is_begun_anew_beside_orphans(cluster: ControlledCluster) -> None:
    delete_tree(cluster.store, paths.partition_state(TP))
    plant(cluster, f"{paths.partition(TP)}/orphan")
    reload(cluster)
    assert partition(cluster).is_online
    assert_elects(cluster)


KEEP = {"retention.ms": "-1", "min.insync.replicas": "2"}
DAMAGED = b'{"version":1,"config":{"retention.ms":-1}}'


def configured(cluster: ControlledCluster) -> ControlledCluster:
    """A topic and all brokers have overrides, of which everybody knows; then their nodes are damaged."""
    configs.alter_topic_configs(cluster.store, FLIGHTS, lambda old: KEEP)
    configs.alter_broker_configs(cluster.store, configs.DEFAULT_BROKER, lambda old: {"log.retention.ms": "9"})
    cluster.take_notices()
    cluster.deliver()
    plant(cluster, paths.topic_config(FLIGHTS), DAMAGED)
    plant(cluster, paths.broker_config(configs.DEFAULT_BROKER), DAMAGED)
    plant(cluster, f"{paths.CONFIG_CHANGES}/x", paths.encode_config_change("topics/flights"))
    plant(cluster, f"{paths.CONFIG_CHANGES}/y", paths.encode_config_change("brokers/<default>"))
    return cluster


def overrides(cluster: ControlledCluster) -> tuple[dict[str, str], dict[str, str]]:
    """By which a broker goes: the topic's and all brokers'."""
    state = cluster.brokers[BrokerId(2)].receiver.state
    return dict(state.topics[FLIGHTS].configs), dict(state.broker_configs[configs.DEFAULT_BROKER])


def test_damaged_overrides_stay_as_they_were_known(cluster: ControlledCluster) -> None:
    configured(cluster).take_notices()
    reload(cluster)
    assert overrides(cluster) == (KEEP, {"log.retention.ms": "9"})
    known = cluster.controller.state.topics[FLIGHTS].configs
    configs.alter_topic_configs(cluster.store, FLIGHTS, lambda old: {**old, "flush.ms": "5"}, known)
    assert stored_configs(cluster.store, paths.topic_config(FLIGHTS)) == {**KEEP, "flush.ms": "5"}


def test_damaged_overrides_that_were_never_known_delete_nothing(cluster: ControlledCluster) -> None:
    configured(cluster)
    election.resign(cluster.store)
    cluster.feed(Deposed())
    cluster.elect()
    cluster.deliver()
    nothing = {"retention.ms": "-1", "retention.bytes": "-1"}
    assert overrides(cluster) == (nothing, {f"log.{name}": value for name, value in nothing.items()})
    configs.alter_topic_configs(cluster.store, FLIGHTS, lambda old: old)
    assert stored_configs(cluster.store, paths.topic_config(FLIGHTS)) == nothing, "what cannot be read is written anew"


def test_config_left_by_a_former_topic_hinders_no_new_one(cluster: ControlledCluster) -> None:
    plant(cluster, "/config/topics/new/child", b"x")
    created(cluster, topic("new", configs={"retention.ms": "5"}))
    assert stored_configs(cluster.store, paths.topic_config(TopicName("new"))) == {"retention.ms": "5"}


def test_reloads_back_off_while_writes_fail(cluster: ControlledCluster) -> None:
    """Somebody takes a node's place again and again: 100 readings in 10 s were seen."""
    cluster.seen.clear()

    def spoil() -> None:
        cluster.store.set(paths.partition_state(TP), paths.encode_partition_state(partition(cluster)))

    leader = partition(cluster).leader
    for write in range(1, 500):
        cluster.before_write(spoil, write)
    cluster.lose(leader)
    for _ in range(100):
        cluster.tick()
    assert 3 <= sum(isinstance(effect, Reload) for effect in cluster.seen) <= 10
    cluster.forget_hooks()
    for _ in range(51):
        cluster.tick()
    assert partition(cluster).leader not in (leader, NO_LEADER)


def test_controller_epoch_that_cannot_be_read_goes_on_above(cluster: ControlledCluster) -> None:
    before = cluster.controller.state.controller_epoch
    cluster.depose()
    plant(cluster, paths.CONTROLLER_EPOCH, b"\xff")
    delete_tree(cluster.store, paths.CONTROLLER)
    mandate = election.campaign(cluster.store, BrokerId(1), TimestampMs(0), Nowhere())
    assert mandate is not None
    assert mandate.epoch > ControllerEpoch(before + 1)


def test_controller_that_no_session_keeps_is_removed(cluster: ControlledCluster) -> None:
    cluster.depose()
    delete_tree(cluster.store, paths.CONTROLLER)
    plant(cluster, f"{paths.CONTROLLER}/child", b"\xff")
    assert election.current_controller(cluster.store) is None
    assert election.campaign(cluster.store, BrokerId(1), TimestampMs(0), Nowhere()) is not None


@pytest.mark.parametrize("data", [b"", b"\xff", b"{}"])
def test_producer_ids_go_on_above_what_cannot_be_read(cluster: ControlledCluster, data: bytes) -> None:
    given = [ProducerIdAllocator(cluster.store, BrokerId(1)).next() for _ in range(3)]
    plant(cluster, paths.PRODUCER_ID_BLOCK, data)
    after = ProducerIdAllocator(cluster.store, BrokerId(1)).next()
    assert after >= max(given) + BLOCK_SIZE
    assert ProducerIdAllocator(cluster.store, BrokerId(1)).next() == after + BLOCK_SIZE


def test_broker_registers_over_a_foreign_registration(cluster: ControlledCluster, tmp_path: Path) -> None:
    plant(cluster, "/brokers/ids/7/child", b"x")
    plant(cluster, "/raylog/brokers/7", b"\xff")
    store = MemoryStore(cluster.tree)
    store.start()
    registration = BrokerRegistration(store, SessionFile(tmp_path / "session.json"))
    info = cluster.brokers[BrokerId(1)].info
    registered = registration.register(BrokerInfo(BrokerId(7), BrokerEpoch(-1), info.endpoints))
    assert registered.intact_since == registered.epoch, "nobody knows what it had"
    assert BrokerId(7) in snapshot.load_brokers(cluster.store)


def test_what_is_skipped_is_told_once(cluster: ControlledCluster, caplog: pytest.LogCaptureFixture) -> None:
    plant(cluster, "/brokers/topics/told once", b"x")
    for _ in range(3):
        snapshot.load(cluster.store)
    [line] = [record.getMessage() for record in caplog.records if "told once" in record.getMessage()]
    assert "/brokers/topics/told once is named as no topic can be" in line
    with unreadable.collecting() as found:
        snapshot.load(cluster.store)
    assert found.known == {"/brokers/topics/told once": "is named as no topic can be"}


def test_delete_tree_fails_by_its_guard_and_leaves_all(cluster: ControlledCluster) -> None:
    plant(cluster, "/x/y/z")
    with pytest.raises(BadVersion):
        delete_tree(cluster.store, "/x", (Check("/x/y", 7),))
    assert cluster.store.exists("/x/y/z") is not None
    delete_tree(cluster.store, "/x")
    assert cluster.store.exists("/x") is None
    delete_tree(cluster.store, "/x")


def test_delete_tree_removes_more_than_one_write_takes(cluster: ControlledCluster) -> None:
    for n in range(600):
        plant(cluster, f"/x/{n:04}{'y' * 2_500}")
    delete_tree(cluster.store, "/x")
    assert cluster.store.exists("/x") is None


def test_config_change_of_a_topic_that_is_unknown_is_nothing(cluster: ControlledCluster) -> None:
    cluster.feed(ConfigChanged({"a": "b"}, topic=TopicName("never-there")))
    assert_elects(cluster)


def test_deleted_state_is_written_again_in_the_next_leader_epoch(cluster: ControlledCluster) -> None:
    """Who is in sync is what was known: the first replica alone may lack what was acknowledged."""
    before = with_epoch(cluster)
    cluster.store.delete(paths.partition_state(TP))
    reload(cluster)
    after = partition(cluster)
    assert (after.leader_epoch, after.isr, after.version) == (before.leader_epoch + 1, before.isr, 0)
    assert after.leader in before.isr
    assert_agreement(cluster)


def elect_anew(cluster: ControlledCluster, broker: int) -> None:
    """Another broker becomes the controller."""
    election.resign(cluster.store)
    cluster.feed(Deposed())
    cluster.elect(broker)
    cluster.deliver()


def with_epoch(cluster: ControlledCluster) -> PartitionState:
    """The partition after an election, with one replica that is not in sync."""
    cluster.lose(1)
    cluster.bring_back(1)
    cluster.deliver()
    before = partition(cluster)
    assert before.leader_epoch > 0
    assert 1 not in before.isr
    return before


@pytest.mark.parametrize("below", ["", "/state"])
def test_next_controller_keeps_epoch_and_isr_of_deleted_state(cluster: ControlledCluster, below: str) -> None:
    """Its broker was told of them by the controller before."""
    before = with_epoch(cluster)
    delete_tree(cluster.store, paths.partition(TP) + below)
    elect_anew(cluster, 2)
    after = partition(cluster)
    assert (after.leader_epoch, after.isr, after.version) == (before.leader_epoch + 1, before.isr, 0)
    assert after.leader in before.isr
    assert_agreement(cluster)


def test_epoch_of_deleted_state_does_not_go_back_though_all_restart(cluster: ControlledCluster) -> None:
    """Nobody remembers it, but logs have it."""
    before = with_epoch(cluster)
    election.resign(cluster.store)
    cluster.feed(Deposed())
    for broker in cluster.brokers.values():
        broker.down()
        broker.receiver = Receiver(broker.info.id)
        broker.up()
    cluster.store.delete(paths.partition_state(TP))
    cluster.elect(2)
    cluster.deliver()
    assert partition(cluster).leader_epoch == before.leader_epoch + 1
    assert_agreement(cluster)


def test_epoch_that_its_broker_was_not_told_does_not_come_twice(cluster: ControlledCluster) -> None:
    """The controller dies once it has written, before it has told anybody."""
    told = with_epoch(cluster)
    cluster.brokers[told.leader].down()
    cluster.brokers_changed()
    cluster.wire.clear()
    before = partition(cluster)
    assert before.leader_epoch == told.leader_epoch + 1
    cluster.store.delete(paths.partition_state(TP))
    elect_anew(cluster, next(broker for broker in (1, 2, 3) if broker != told.leader))
    assert partition(cluster).leader_epoch == before.leader_epoch + 1
    assert_agreement(cluster)


def test_deleted_state_is_told_with_its_epoch_and_what_to_do(cluster: ControlledCluster) -> None:
    """A topic that is being deleted loses its states first, which is nothing strange."""
    before = with_epoch(cluster)
    cluster.store.delete(paths.partition_state(TP))
    cluster.store.delete(paths.partition_state(TP._replace(topic=OTHER)))
    cluster.store.create(paths.delete_topic(OTHER))
    with unreadable.collecting() as found:
        snapshot.load(cluster.store)
    [(path, what)] = found.known.items()
    assert path == paths.partition_state(TP)
    assert f"leader epoch {before.leader_epoch}" in what
    assert "written anew" in unreadable.advice_for(path, what)


@pytest.mark.parametrize(
    ("path", "value", "advice"),
    [
        ("/brokers/topics/no topic", b"{}", "delete the node: no topic can have this name"),
        ("/admin/delete_topics/no topic", b"", "delete the node: no topic can have this name"),
        ("/brokers/topics/flights", b"?", "raylog topics delete"),
        ("/brokers/topics/flights/partitions/0/state", b"?", "leader_epoch above all"),
        ("/brokers/ids/abc", b"{}", "which program registered it"),
        ("/raylog/topic_ids/odd", b"", "delete the node: it is no topic's id"),
        ("/consumers/%", b"", "delete the node: no group can have this name"),
    ],
)
def test_each_strange_node_is_told_with_what_to_do(
    cluster: ControlledCluster, path: str, value: bytes, advice: str
) -> None:
    plant(cluster, path, value)
    with unreadable.collecting() as found:
        snapshot.load(cluster.store)
        group_nodes.group_ids(cluster.store)
    assert advice in unreadable.advice_for(path, found.known[path])


def test_copy_of_a_topic_is_told_to_be_deleted_alone(cluster: ControlledCluster) -> None:
    plant_copy(cluster)
    with unreadable.collecting() as found:
        snapshot.load(cluster.store)
    path = paths.topic(COPY)
    assert "`raylog topics delete` deletes the copy alone" in unreadable.advice_for(path, found.known[path])


def test_deleted_state_of_a_partition_without_leader_is_kept(cluster: ControlledCluster) -> None:
    cluster.propose_isr(TP, partition(cluster).leader)
    [only] = partition(cluster).isr
    cluster.lose(only)
    cluster.deliver()
    before = partition(cluster)
    cluster.store.delete(paths.partition(TP) + "/state")
    cluster.store.delete(paths.partition(TP))
    reload(cluster)
    assert partition(cluster) == replace(before, version=0)
    cluster.bring_back(only)
    cluster.deliver()
    assert (partition(cluster).leader, partition(cluster).leader_epoch) == (only, before.leader_epoch + 1)
    assert_agreement(cluster)


COPY = TopicName("copy")


def plant_copy(cluster: ControlledCluster) -> None:
    """Somebody copies a topic's node; in order of names the copy comes first."""
    found = cluster.store.get(paths.topic(FLIGHTS))
    assert found is not None
    cluster.store.create(paths.topic(COPY), found.data)


@pytest.mark.parametrize("is_elected_anew", [False, True])
def test_copied_topic_is_skipped_and_told_once(
    cluster: ControlledCluster, caplog: pytest.LogCaptureFixture, is_elected_anew: bool
) -> None:
    plant_copy(cluster)
    if is_elected_anew:
        election.resign(cluster.store)
        cluster.feed(Deposed())
        cluster.elect()
    for _ in range(2):
        reload(cluster)
    state = cluster.controller.state
    assert (set(state.topics), state.unreadable) == ({FLIGHTS, OTHER}, {COPY})
    assert state.topics_by_id[state.topics[FLIGHTS].id].name == FLIGHTS
    lines = [record.getMessage() for record in caplog.records if "/brokers/topics/copy" in record.getMessage()]
    assert len([line for line in lines if "has the id of topic flights" in line]) <= 1, "once by this process"
    with unreadable.collecting() as found:
        snapshot.load(cluster.store)
    assert [*found.known] == [paths.topic(COPY)]
    assert_elects(cluster)


def test_copied_topic_is_deleted_and_its_model_stays(cluster: ControlledCluster) -> None:
    plant_copy(cluster)
    reload(cluster)
    cluster.delete(COPY)
    cluster.deliver()
    assert cluster.store.exists(paths.topic(COPY)) is None
    assert cluster.store.exists(paths.topic_id(cluster.controller.state.topics[FLIGHTS].id)) is not None
    assert not cluster.controller.state.unreadable
    assert_agreement(cluster)


def test_closed_node_of_one_partition_takes_no_other_offset_with_it() -> None:
    group, tps = GroupId("g"), [TopicPartition(name, PartitionIndex(0)) for name in (FLIGHTS, OTHER, TopicName("last"))]
    with MemoryStore(MemoryTree()) as store, unreadable.collecting() as told:
        ids = {tp.topic: put_topic(store, tp.topic) for tp in tps}
        settle_kind(store, group, GroupKind.CLIENTS)
        offsets = RegistryOffsetStore(store)
        assert not offsets.write(group, dict.fromkeys(tps, CommittedOffset(Offset(5))), [], ids)
        closed = [paths.topic(FLIGHTS), group_paths.detail(group, tps[1])]
        for path in closed:
            close_node(store, path)
        found = offsets.read(group)
        first = TopicPartition(OTHER, PartitionIndex(1))  # its commit reads which nodes are there
        commits = dict.fromkeys((tps[1], first), CommittedOffset(Offset(6)))
        assert not offsets.write(group, commits, [], ids)
        assert offsets.read(group, [first]).committed == {first: commits[first]}
    assert found.committed == {tps[2]: CommittedOffset(Offset(5))}
    assert found.unreadable.keys() == {*tps[:2]}
    assert sorted(told.known) == sorted(closed)
