"""`raylog groups` and `raylog consume --group`, and what the admin client asks of coordinators under them."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer

from kit.cluster import InProcessCluster
from kit.commands import call, one_line, run, started
from kit.machine import scaled, scaled_ms
from kit.proxied import proxied
from kit.proxy import Fate
from kit.waiting import wait_until
from kit.zookeeper import running_zookeeper
from raylog.client import Admin, Consumer, Producer
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper
from raylog.protocol.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidGroupId,
    InvalidRequest,
    NonEmptyGroup,
    RaylogError,
    RequestTimedOut,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import LeaderEpoch, Offset, PartitionIndex, TopicName, TopicPartition

pytestmark = pytest.mark.system

WAIT_S = 20
OFFSET_COMMIT, FIND_COORDINATOR = 8, 10
CONFIG = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: EmbeddedZooKeeper) -> Iterator[InProcessCluster]:
    root = tmp_path_factory.mktemp("brokers")
    with InProcessCluster(root, brokers=2, config=CONFIG, zookeeper=zookeeper.address) as running:
        running.create_topic("t", partitions=2)
        with Producer(running.bootstrap_servers) as producer:
            for partition, count in ((0, 10), (1, 4)):
                for number in range(count):
                    producer.send("t", b"v", partition=partition, timestamp=1_000 + number)
        yield running


@pytest.fixture
def admin(cluster: InProcessCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap_servers, default_api_timeout_ms=scaled_ms(10_000)) as found:
        yield found


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A group id that no other test has."""
    return f"of-{request.node.name}"


def tp(partition: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))


def succeed(cluster: InProcessCluster, *arguments: str) -> str:
    """What a command that succeeds says on stderr."""
    done = call(cluster, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stderr


def as_json(cluster: InProcessCluster, *arguments: str) -> Any:
    done = call(cluster, *arguments, "--output", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def member(cluster: InProcessCluster, group: str, topic: str = "t") -> Iterator[ConfluentConsumer]:
    """A Kafka client that is a member of the group and reads the topic."""
    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "client.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([topic])
        wait_until(
            lambda: (polled := consumer.poll(0.1)) is not None and polled.error() is None, WAIT_S, "the member reads"
        )
        yield consumer
    finally:
        consumer.close()


def committed(admin: Admin, group: str) -> dict[TopicPartition, int]:
    return {tp: found.offset for tp, found in admin.list_group_offsets(group).items()}


# --- the admin client ------------------------------------------------------------------------------------------------


def test_offsets_are_committed_told_and_forgotten(admin: Admin, group: str) -> None:
    assert admin.list_group_offsets(group) == {}
    whole = CommittedOffset(Offset(7), LeaderEpoch(0), "by hand")
    assert admin.alter_group_offsets(group, {("t", 0): whole, ("t", 1): 2}) == {tp(0): None, tp(1): None}
    found = admin.list_group_offsets(group)
    assert (found[tp(0)].offset, found[tp(0)].leader_epoch, found[tp(0)].metadata) == (7, 0, "by hand")
    assert committed(admin, group) == {tp(0): 7, tp(1): 2}
    assert admin.list_group_offsets(group, [("t", 1)]).keys() == {tp(1)}
    assert admin.delete_group_offsets(group, [("t", 0)]) == {tp(0): None}
    assert committed(admin, group) == {tp(1): 2}
    assert admin.delete_groups([group]) == {group: None}
    assert admin.list_group_offsets(group) == {}


def test_asking_makes_no_group(admin: Admin, group: str) -> None:
    assert admin.list_group_offsets(group) == {}
    assert isinstance(admin.describe_groups([group])[group], GroupIdNotFound)
    assert isinstance(admin.delete_groups([group])[group], GroupIdNotFound)
    assert group not in {found.group_id for found in admin.list_groups()}


def test_each_partition_and_each_group_has_its_own_fate(admin: Admin, group: str) -> None:
    results = admin.alter_group_offsets(group, {("t", 0): 1, ("nosuch", 0): 1})
    assert results[tp(0)] is None
    assert isinstance(results[tp(0, "nosuch")], UnknownTopicOrPartition)
    deleted = admin.delete_groups([group, f"not-{group}"])
    assert deleted[group] is None
    assert isinstance(deleted[f"not-{group}"], GroupIdNotFound)
    with pytest.raises(InvalidGroupId):
        admin.alter_group_offsets("", {("t", 0): 1})


def members_of(admin: Admin, group: str) -> dict[str, str | None]:
    """The members' ids, and their instances' names."""
    found = admin.describe_groups([group])[group]
    if isinstance(found, GroupIdNotFound):
        return {}
    assert not isinstance(found, RaylogError)
    return {str(each.member_id): each.group_instance_id for each in found.members}


@contextmanager
def two_members(cluster: InProcessCluster, admin: Admin, group: str, kind: str) -> Iterator[str]:
    """One of them is static, of the instance ``static``, and closed: it stays for its session. The id of the other."""
    servers = cluster.bootstrap_servers
    polls: list[Callable[[], object]] = []
    with ExitStack() as stack, ExitStack() as of_static:
        for name, its in (("", stack), ("static", of_static)):
            if kind == "clients":
                client = ConfluentConsumer(
                    {"bootstrap.servers": servers, "group.id": group, **({"group.instance.id": name} if name else {})}
                )
                its.callback(client.close)
                client.subscribe(["t"])
                polls.append(partial(client.poll, 0.05))
            else:
                actor = its.enter_context(
                    Consumer(servers, ["t"], group_id=group, group_instance_id=name or None, max_poll_records=1)
                )
                polls.append(partial(actor.poll, 50))

        def are_both_there() -> bool:
            for poll in polls:
                poll()
            return sorted(name or "" for name in members_of(admin, group).values()) == ["", "static"]

        wait_until(are_both_there, WAIT_S, "both are members")
        of_static.close()
        assert "static" in members_of(admin, group).values()
        yield next(member for member, name in members_of(admin, group).items() if not name)


@pytest.mark.parametrize("kind", ["clients", "actors"])
def test_members_are_removed_by_id_and_by_instance(
    cluster: InProcessCluster, admin: Admin, group: str, kind: str
) -> None:
    with two_members(cluster, admin, group, kind) as dynamic:
        results = admin.remove_members(group, [dynamic, "nosuch"], instances=["static", "none"])
        assert {name: type(error) for name, error in results.items()} == {
            dynamic: type(None), "nosuch": UnknownMemberId, "static": type(None), "none": UnknownMemberId,
        }  # fmt: skip
        assert "static" not in members_of(admin, group).values()
    with pytest.raises(InvalidRequest, match="both empty"):
        admin.remove_members(group)
    with pytest.raises(InvalidRequest, match="'m' is in members and in instances"):
        admin.remove_members(group, ["m"], instances=["m"])


def test_members_are_removed_by_command(cluster: InProcessCluster, admin: Admin, group: str) -> None:
    remove = ("groups", "remove-members", group)
    with two_members(cluster, admin, group, "clients") as dynamic:
        failed = call(cluster, *remove, "--member", "nosuch", "--instance", "static")
        assert failed.returncode == 1
        assert failed.stderr.splitlines() == [
            f"removed static from group {group}",
            f"raylog: group '{group}': removing 'nosuch': it is no member; "
            f"`raylog groups describe {group} --members` shows who is: UNKNOWN_MEMBER_ID (25)",
        ]
        assert f"removed {dynamic} from group {group}\n" in succeed(cluster, *remove, "--all")


def test_a_group_with_members_is_described_and_left_alone(cluster: InProcessCluster, admin: Admin, group: str) -> None:
    with member(cluster, group) as consumer:
        found = admin.describe_groups([group])[group]
        assert not isinstance(found, RaylogError)
        (reader,) = found.members
        assert (found.state, found.protocol_type, reader.client_id) == ("Stable", "consumer", "reader")
        assert (reader.topics, reader.assignment) == (("t",), (tp(0), tp(1)))
        assert (group, "Stable") in {(listed.group_id, listed.state) for listed in admin.list_groups(["Stable"])}
        assert group not in {listed.group_id for listed in admin.list_groups(["Empty"])}
        consumer.commit(asynchronous=False)
        before = committed(admin, group)
        refused = admin.alter_group_offsets(group, {("t", 0): 0, ("t", 1): 0})
        assert {partition: type(error) for partition, error in refused.items()} == dict.fromkeys(
            (tp(0), tp(1)), UnknownMemberId
        )
        assert isinstance(admin.delete_groups([group])[group], NonEmptyGroup)
        assert isinstance(admin.delete_group_offsets(group, [("t", 0)])[tp(0)], GroupSubscribedToTopic)
        assert committed(admin, group) == before


def test_the_coordinator_is_followed_when_it_stops(tmp_path: Path) -> None:
    with (
        InProcessCluster(tmp_path / "brokers", brokers=2, config=CONFIG) as cluster,
        Admin(cluster.bootstrap_servers, default_api_timeout_ms=scaled_ms(20_000)) as admin,
    ):
        cluster.create_topic("t")
        admin.alter_group_offsets("g", {("t", 0): 0})
        found = admin.describe_groups(["g"])["g"]
        assert not isinstance(found, RaylogError)
        cluster.stop(found.coordinator)
        assert committed(admin, "g") == {tp(0): 0}
        after = admin.describe_groups(["g"])["g"]
        assert not isinstance(after, RaylogError)
        assert after.coordinator != found.coordinator
        assert [listed.group_id for listed in admin.list_groups()] == ["g"]
        assert admin.delete_groups(["g"]) == {"g": None}


def once(fate: Fate, api: int) -> Callable[[int], Fate]:
    """The fate of the first frame of that API; all others pass."""
    left = [fate]
    return lambda api_key: left.pop() if api_key == api and left else Fate.PASS


def test_a_commit_whose_answer_was_lost_is_made_again(tmp_path: Path) -> None:
    with (
        proxied(tmp_path / "brokers") as (_, proxy, servers),
        Admin(servers, default_api_timeout_ms=scaled_ms(20_000)) as admin,
    ):
        proxy.on_answer = once(Fate.CUT, OFFSET_COMMIT)
        assert admin.alter_group_offsets("g", {("t", 0): 0}) == {tp(0): None}
        assert (proxy.requests[OFFSET_COMMIT], proxy.requests[FIND_COORDINATOR]) == (2, 2)
        assert committed(admin, "g") == {tp(0): 0}


def test_a_coordinator_that_does_not_answer_is_waited_for_no_longer_than_the_call_may_take(tmp_path: Path) -> None:
    with (
        proxied(tmp_path / "brokers") as (_, proxy, servers),
        Admin(servers, default_api_timeout_ms=3_000, request_timeout_ms=scaled_ms(30_000)) as admin,
    ):
        proxy.on_request = lambda api_key: Fate.DROP if api_key == OFFSET_COMMIT else Fate.PASS
        begun = time.monotonic()
        with pytest.raises(RequestTimedOut, match="no answer within"):
            admin.alter_group_offsets("g", {("t", 0): 0})
        assert time.monotonic() - begun < scaled(15), "not by request.timeout.ms, by which connections go"


# --- the commands ----------------------------------------------------------------------------------------------------


def test_groups_are_listed_described_and_deleted(cluster: InProcessCluster, admin: Admin, group: str) -> None:
    admin.alter_group_offsets(group, {("t", 0): 3, ("t", 1): 4})
    assert {"group": group, "state": "Empty", "protocol_type": ""} in [
        {**row, "protocol_type": ""} for row in as_json(cluster, "groups", "list", "--state", "Empty")
    ]
    assert group in call(cluster, "groups", "list").stdout.splitlines()
    assert group not in call(cluster, "groups", "list", "--state", "Stable").stdout.splitlines()
    facts = as_json(cluster, "groups", "describe", group)
    assert (facts["state"], facts["members"]) == ("Empty", [])
    assert [(row["partition"], row["committed"], row["latest"], row["lag"]) for row in facts["partitions"]] == [
        (0, 3, 10, 7),
        (1, 4, 4, 0),
    ]
    table = call(cluster, "groups", "describe", group).stdout.splitlines()
    assert table[0].startswith(f"{group} is Empty: 0 members; broker ")
    assert table[1].split() == ["topic", "partition", "committed", "latest", "lag", "member_id", "client_id", "host"]
    assert table[2].split() == ["t", "0", "3", "10", "7", "-", "-", "-"]
    assert "forgotten its offsets of 1 partition" in succeed(cluster, "groups", "delete", group, "--topic", "t:1")
    assert committed(admin, group) == {tp(0): 3}
    one_line(call(cluster, "groups", "delete", group, "--topic", "t:1"), "has committed nothing there")
    assert succeed(cluster, "groups", "delete", group) == f"deleted group {group}\n"
    one_line(call(cluster, "groups", "describe", group), f"there is no group '{group}'")
    one_line(call(cluster, "groups", "delete", group), "there is none of that name", "GROUP_ID_NOT_FOUND")


def test_members_are_shown_with_what_they_read(cluster: InProcessCluster, group: str) -> None:
    with member(cluster, group) as consumer:
        consumer.commit(asynchronous=False)
        facts = as_json(cluster, "groups", "describe", group)
        (reader,) = facts["members"]
        assert (facts["state"], reader["client_id"], reader["partitions"]) == ("Stable", "reader", ["t-0", "t-1"])
        assert [row["member_id"] for row in facts["partitions"]] == [reader["member_id"]] * 2
        shown = call(cluster, "groups", "describe", group, "--members").stdout.splitlines()
        assert shown[1].split() == ["member_id", "instance_id", "client_id", "host", "partitions"]
        assert shown[2].split()[-1] == "t-0,t-1"
        one_line(call(cluster, "groups", "delete", group), "it has members, so stop them first", "NON_EMPTY_GROUP")


def test_a_reset_is_shown_and_made_only_when_it_is_told_to(cluster: InProcessCluster, admin: Admin, group: str) -> None:
    def reset(*options: str) -> dict[int, int]:
        rows = as_json(cluster, "groups", "reset-offsets", group, *options)
        return {row["partition"]: row["proposed"] for row in rows}

    told = succeed(cluster, "groups", "reset-offsets", group, "--topic", "t", "--to-earliest")
    assert told == "nothing was changed; add --execute to reset 2 partitions\n"
    assert committed(admin, group) == {}
    assert reset("--topic", "t", "--to-latest", "--execute") == {0: 10, 1: 4} == by_number(committed(admin, group))
    assert reset("--topic", "t:0", "--to-offset", "5", "--execute") == {0: 5}
    assert by_number(committed(admin, group)) == {0: 5, 1: 4}
    assert reset("--all-topics", "--shift-by", "-2", "--execute") == {0: 3, 1: 2} == by_number(committed(admin, group))
    assert reset("--topic", "t", "--to-timestamp", "1002") == {0: 2, 1: 2}
    assert reset("--topic", "t", "--to-datetime", "1970-01-01T00:00:01.006+00:00") == {0: 6, 1: 4}
    assert reset("--topic", "t", "--to-earliest") == {0: 0, 1: 0}
    shown = call(cluster, "groups", "reset-offsets", group, "--topic", "t:1", "--to-offset", "9")
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["topic", "partition", "committed", "proposed", "earliest", "latest", "lag"],
        ["t", "1", "2", "4", "0", "4", "0"],
    ]
    assert "t-1 has offsets 0 to 4, not 9" in shown.stderr
    assert by_number(committed(admin, group)) == {0: 3, 1: 2}


def by_number(offsets: dict[TopicPartition, int]) -> dict[int, int]:
    return {tp.partition: offset for tp, offset in offsets.items()}


def test_what_cannot_be_reset_is_told(cluster: InProcessCluster, admin: Admin, group: str) -> None:
    def refused(*options: str) -> Any:
        return call(cluster, "groups", "reset-offsets", group, *options)

    one_line(refused("--all-topics", "--to-latest"), f"group {group} has committed nothing")
    one_line(refused("--topic", "t", "--shift-by", "1"), "t-0: nothing is committed")
    one_line(refused("--topic", "nosuch", "--to-latest"), "UNKNOWN_TOPIC_OR_PARTITION")
    one_line(refused("--topic", "t:2", "--to-latest"), "t has partitions 0 to 1, not 2")
    with member(cluster, group) as consumer:
        consumer.commit(asynchronous=False)
        before = committed(admin, group)
        one_line(refused("--topic", "t", "--to-latest", "--execute"), "1 member (reader at ", "stop them first")
        shown = refused("--topic", "t", "--to-latest")
        assert (shown.returncode, len(shown.stdout.splitlines())) == (0, 3)
        assert shown.stderr.startswith("nothing was changed; group ")
        assert committed(admin, group) == before


def test_what_retention_has_taken_is_told(tmp_path: Path) -> None:
    with (
        InProcessCluster(tmp_path / "brokers", config=CONFIG) as cluster,
        Admin(cluster.bootstrap_servers, default_api_timeout_ms=scaled_ms(10_000)) as admin,
    ):
        cluster.create_topic("t")
        cluster.create_topic("gone")
        with Producer(cluster.bootstrap_servers) as producer:
            for _ in range(10):
                producer.send("t", b"v")
        admin.alter_group_offsets("g", {("t", 0): 3, ("gone", 0): 0})
        admin.delete_records({("t", 0): 5})
        admin.delete_topics(["gone"])
        described = call(cluster, "groups", "describe", "g")
        assert "t-0: offset 3 is committed, but the log has 5 to 10" in described.stderr
        (row,) = [row for row in as_json(cluster, "groups", "describe", "g")["partitions"] if row["topic"] == "t"]
        assert row["lag"] == 7
        shown = call(cluster, "groups", "reset-offsets", "g", "--all-topics", "--to-earliest", "--execute")
        assert shown.returncode == 0, shown.stderr
        assert committed(admin, "g")[tp(0)] == 5


# --- raylog consume --group -------------------------------------------------------------------------------------------


def test_a_group_goes_on_behind_what_was_printed(cluster: InProcessCluster, admin: Admin, group: str) -> None:
    def printed(*options: str) -> list[str]:
        done = run(cluster, "consume", "t", "--group", group, "--format", "%p %o\\n", *options)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    first = printed("--from-beginning", "--max-messages", "6")
    assert len(first) == 6
    assert sum(committed(admin, group).values()) == 6
    second = printed("--from-beginning", "--max-messages", "8")
    assert sorted(first + second) == sorted(f"{part} {at}" for part, count in ((0, 10), (1, 4)) for at in range(count))
    assert by_number(committed(admin, group)) == {0: 10, 1: 4}


def test_a_member_at_the_terminal_is_described_and_guards_its_group(
    cluster: InProcessCluster, admin: Admin, group: str
) -> None:
    consume = ("consume", "t", "--group", group, "--from-beginning", "--format", "%p %o\\n")
    with started(cluster, *consume) as process:
        assert process.stdout is not None
        first = sorted(process.stdout.readline() for _ in range(14))
        wait_until(lambda: by_number(committed(admin, group)) == {0: 10, 1: 4}, WAIT_S, "what was printed is committed")
        facts = as_json(cluster, "groups", "describe", group)
        (reader,) = facts["members"]
        assert (facts["state"], facts["protocol_type"]) == ("Stable", "consumer")
        assert (reader["topics"], reader["partitions"]) == (["t"], ["t-0", "t-1"])
        refused = call(cluster, "groups", "reset-offsets", group, "--all-topics", "--to-earliest", "--execute")
        one_line(refused, "has 1 member (raylog-", "stop them first")
        one_line(call(cluster, "groups", "delete", group), "it has members, so stop them first", "NON_EMPTY_GROUP")
        process.send_signal(signal.SIGTERM)
        assert process.wait(scaled(WAIT_S)) == 143
        assert as_json(cluster, "groups", "describe", group)["members"] == []
    succeed(cluster, "groups", "reset-offsets", group, "--all-topics", "--to-earliest", "--execute")
    with started(cluster, *consume, "--max-messages", "14") as process:
        assert process.stdout is not None
        assert sorted(process.stdout.readline() for _ in range(14)) == first
        assert process.wait(scaled(WAIT_S)) == 0
    assert succeed(cluster, "groups", "delete", group) == f"deleted group {group}\n"
