"""Groups of consumer actors on a Ray cluster: scaled, killed, drained and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import ray
from ray import cloudpickle

from kit.cli import RunningCluster
from kit.forms import some
from kit.machine import scaled
from kit.waiting import wait_until
from raylog.client import ActorGroup, Cluster, Producer, connect, group
from raylog.client.handlers.consumer_actor import MemberReport
from raylog.client.handlers.runner import State
from raylog.client.results import GroupDescription
from raylog.coordination.metadata import group_paths
from raylog.coordination.zookeeper.store import ZkStore
from raylog.protocol.errors import InvalidRequest, RaylogError, RequestTimedOut, UnknownTopicOrPartition
from raylog.protocol.ids import GroupId, PartitionIndex, TopicName, TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

EXAMPLES = Path(__file__).parents[2] / "examples"
PARTITIONS = 6
WAIT_S = 60.0
SESSION_S = scaled(30.0)
"""Of members that are killed: so long that half of it is more than a busy machine needs to notice a death."""
CARRIERS = ("AA", "B6", "UA")
_numbers = count()


@pytest.fixture
def cluster(three_brokers: RunningCluster) -> Iterator[Cluster]:
    """This process connects to the cluster's Ray with the first group that it makes."""
    yield connect(data_dir=three_brokers.data_dir)
    ray.shutdown()


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"legs-{next(_numbers)}"
    with cluster.admin() as admin:
        admin.create_topic(name, PARTITIONS, replication_factor=3)
    return name


@pytest.fixture(scope="module")
def delays() -> Iterator[ModuleType]:
    """The example's handler, which keeps sums and offsets in one SQLite database."""
    sys.path.insert(0, str(EXAMPLES))
    module = import_module("delays")
    cloudpickle.register_pickle_by_value(module)
    try:
        yield module
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        sys.path.remove(str(EXAMPLES))


class Feed:
    """Sends flights until it is left, and remembers what they sum up to."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.sent: Counter[str] = Counter()
        self.minutes: Counter[str] = Counter()
        self._servers = cluster.bootstrap_servers
        self._topic = topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Returns when all that was sent is delivered. Twice does no harm."""
        self._over.set()
        self._thread.join()

    def _send(self) -> None:
        with Producer(self._servers, linger_ms=5) as producer:
            for number in count():
                if self._over.wait(0.0005):
                    break
                carrier, minutes = CARRIERS[number % len(CARRIERS)], number % 100 - 20
                value = json.dumps({"carrier": carrier, "arr_delay": minutes}).encode()
                producer.send(self._topic, value, partition=number % PARTITIONS)
                self.sent[carrier] += 1
                self.minutes[carrier] += minutes


def fill(cluster: Cluster, topic: str, records: int) -> None:
    """``records`` records, in turn over the partitions."""
    with cluster.producer() as producer:
        for number in range(records):
            producer.send(topic, b"%d" % number, partition=number % PARTITIONS)


def noting(path: Path) -> Callable[[list[Any]], None]:
    """A handler that appends what it gets to a file, a value a line."""

    def note(records: list[Any]) -> None:
        with path.open("ab") as file:
            file.write(b"".join(record.value + b"\n" for record in records))

    return note


def owners(consumers: ActorGroup) -> dict[int, int]:
    """Which member owns each partition, once every partition has an owner."""

    def complete() -> dict[int, int] | None:
        found = {tp.partition: index for tp, index in consumers.status().owners.items()}
        return found if len(found) == PARTITIONS else None

    found = wait_until(complete, WAIT_S, "every partition has an owner")
    assert found is not None
    return found


def wait_shared(consumers: ActorGroup, *shares: int) -> dict[int, int]:
    """Wait until so many partitions are owned by each member, in whatever order; who owns what."""
    wanted = sorted(shares)
    wait_until(
        lambda: sorted(Counter(owners(consumers).values()).values()) == wanted, WAIT_S, f"they are shared {shares}"
    )
    return owners(consumers)


def test_sums_are_exact_while_members_join_leave_and_are_killed(
    three_brokers: RunningCluster, cluster: Cluster, topic: str, delays: ModuleType, tmp_path: Path
) -> None:
    database = tmp_path / "delays.db"
    handler = partial(delays.Delays, database)
    with Feed(cluster, topic) as feed:
        consumers = group(
            f"group-of-{topic}",
            topics=[topic],
            handler=handler,
            size=2,
            cluster=cluster,
            processing_guarantee="exactly_once",
            session_timeout_ms=int(SESSION_S * 1_000),
        )
        with consumers:
            two = wait_shared(consumers, 3, 3)
            consumers.scale(3)
            three = wait_shared(consumers, 2, 2, 2)
            assert sum(two[partition] != three[partition] for partition in range(PARTITIONS)) == 2
            seconds = []
            for index in some(range(3), 3):
                killed = consumers.status().members[index]
                seconds.append(seconds_to_take_over(three_brokers, consumers.name, topic, killed))
                wait_until(partial(is_another, consumers, index, killed.pid), WAIT_S, "Ray has started it again")
                wait_shared(consumers, 2, 2, 2)
            print(f"\na killed consumer actor's partitions were others' after {sorted(seconds)} s")
            assert max(seconds) < SESSION_S / 2  # its death was noticed, not the end of its session
            consumers.scale(1)
            assert consumers.size == 1
            wait_shared(consumers, 6)
            feed.stop()
            consumers.drain(WAIT_S)
            assert consumers.size == 0
    assert delays.read_delays(database) == {
        carrier: (feed.sent[carrier], feed.minutes[carrier]) for carrier in CARRIERS
    }


def seconds_to_take_over(running: RunningCluster, name: str, topic: str, victim: MemberReport) -> float:
    """kill -9 of the member's process; how long until every partition has a living owner."""
    group_id, topic_name = GroupId(name), TopicName(topic)
    nodes = [
        group_paths.owner(group_id, TopicPartition(topic_name, PartitionIndex(index))) for index in range(PARTITIONS)
    ]
    with ZkStore(running.status()["zookeeper"], auth=running.zookeeper_auth) as store:
        killed = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        dead = victim.status.member_id.encode()
        wait_until(
            lambda: all(found is not None and dead not in found.data for found in store.get_many(nodes)),
            WAIT_S,
            "others own its partitions",
        )
        return time.monotonic() - killed


def is_another(consumers: ActorGroup, index: int, pid: int) -> bool:
    member = consumers.status().members[index]
    return member.status.state is State.RUNNING and member.pid != pid


def test_killed_static_actor_is_started_again_with_its_partitions(cluster: Cluster, topic: str) -> None:
    """Two groups of actors, made by two programs say, have instances of their own."""
    make = partial(group, f"group-of-{topic}", topics=topic, handler=len, cluster=cluster, session_timeout_ms=60_000)
    with make(size=2, group_instance_id="one") as consumers, make(group_instance_id="other") as others:
        wait_until(lambda: len(others.status().owners) == 2, WAIT_S, "the other group has its share")
        wait_until(lambda: len(consumers.status().owners) == 4, WAIT_S, "the rest is this group's")
        with cluster.admin() as admin:
            described = admin.describe_groups([consumers.name])[consumers.name]
        assert isinstance(described, GroupDescription)
        members = described.members
        assert sorted(str(member.group_instance_id) for member in members) == ["one-0", "one-1", "other-0"]
        of_others = others.status().owners
        for index in some(range(2), 2):
            killed, had = consumers.status().members[index], consumers.status().owners
            begun = time.monotonic()
            os.kill(killed.pid, signal.SIGKILL)
            wait_until(partial(is_another, consumers, index, killed.pid), WAIT_S, "Ray has started it again")
            wait_until(lambda: consumers.status().owners == had, WAIT_S, "it has what it had")  # noqa: B023
            print(f"\na killed static actor had its partitions again after {time.monotonic() - begun:.2f} s")
        assert others.status().owners == of_others
        with make(group_instance_id="one"):
            wait_until(lambda: consumers.status().members[0].status.state is State.FAILED, WAIT_S, "it is fenced")
            assert "FencedInstanceId" in consumers.status().members[0].status.trouble


def wait_both(one: ActorGroup, other: ActorGroup) -> set[TopicPartition]:
    """Wait until the two, of one group, share its partitions, and answer these."""

    def shared() -> set[TopicPartition]:
        mine, theirs = one.status().owners.keys(), other.status().owners.keys()
        return mine | theirs if len(mine) == len(theirs) == PARTITIONS // 2 else set()

    return wait_until(shared, WAIT_S, "both have their half")


def test_a_drained_group_has_handled_and_committed_all(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """Also what belongs to members that somebody else has made."""
    log = tmp_path / "handled"
    name = f"group-of-{topic}"
    make = partial(group, name, topics=topic, handler=noting(log), cluster=cluster, auto_offset_reset="earliest")
    with make() as consumers, make(auto_commit_interval_ms=100) as of_another:
        assert len(wait_both(consumers, of_another)) == PARTITIONS
        fill(cluster, topic, 600)
        consumers.drain(WAIT_S)
        with pytest.raises(RaylogError, match="has no actors"):
            consumers.drain(WAIT_S)
    assert sorted(map(int, log.read_text().split())) == list(range(600))
    with cluster.admin() as admin:
        offsets = admin.list_group_offsets(name)
    assert {tp.partition: offset.offset for tp, offset in offsets.items()} == dict.fromkeys(range(PARTITIONS), 100)


def test_drain_ends_where_a_topic_is_deleted(cluster: Cluster, topic: str) -> None:
    """What is left of it never comes; made anew, it is another one, which ends elsewhere."""
    with cluster.producer() as producer:
        producer.send(topic, b"0", partition=0)

    def refuse(records: list[Any]) -> None:
        raise ValueError("not now")

    config = {"auto_offset_reset": "earliest", "errors_retry_timeout": -1}
    with (
        ThreadPoolExecutor() as pool,
        group(f"group-of-{topic}", topics=topic, handler=refuse, cluster=cluster, **config) as consumers,
    ):
        draining = pool.submit(consumers.drain, WAIT_S)
        wait_until(
            lambda: consumers.status().positions, WAIT_S, "members that drain tell where they stand without records"
        )
        with cluster.admin() as admin:
            admin.delete_topics([topic])
            admin.create_topic(topic, PARTITIONS, replication_factor=3)
        with pytest.raises(UnknownTopicOrPartition, match=f"{topic} was deleted while it was drained"):
            draining.result()


def test_a_handler_that_hangs_is_killed_with_its_process(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    fill(cluster, topic, PARTITIONS)
    begun = tmp_path / "begun"

    def hang(records: list[Any]) -> None:
        begun.write_text(str(os.getpid()))
        threading.Event().wait()

    name = f"group-of-{topic}"
    consumers = group(name, topics=topic, handler=hang, cluster=cluster, auto_offset_reset="earliest")
    with consumers:
        wait_until(lambda: begun.exists() and begun.read_text(), WAIT_S, "the handler hangs")
        pid = int(begun.read_text())
        member = wait_until(lambda: consumers.status().members[0], WAIT_S, "its status")
        assert member.status.handling is not None
        assert member.handling_s > 0
        with pytest.raises(RequestTimedOut, match=r"not drained within 0.5 s: .*-\d at"):
            consumers.drain(0.5)
        consumers.stop(timeout_s=0.5)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), WAIT_S, "its process is gone")
    handled = tmp_path / "handled"

    with group(name, topics=topic, handler=noting(handled), cluster=cluster, auto_offset_reset="earliest") as consumers:
        consumers.drain(WAIT_S)
    assert sorted(handled.read_text().split()) == [str(number) for number in range(PARTITIONS)]


def test_a_handler_that_cannot_be_made_fails_the_start(cluster: Cluster, topic: str) -> None:
    class Broken:
        def __init__(self) -> None:
            raise ValueError("no database")

        def __call__(self, records: list[Any]) -> None: ...

    with pytest.raises(RaylogError, match="ValueError: no database"):
        group(f"group-of-{topic}", topics=topic, handler=Broken, size=2, cluster=cluster)
    with pytest.raises(InvalidRequest, match="size=-1"):
        group(f"group-of-{topic}", topics=topic, handler=print, size=-1, cluster=cluster)


def test_a_handler_that_fails_for_good_is_seen_by_who_waits(cluster: Cluster, topic: str) -> None:
    def fail(records: list[Any]) -> None:
        raise ValueError("no such order")

    name = f"group-of-{topic}"
    config = {"auto_offset_reset": "earliest", "errors_retry_timeout": 100}
    with group(name, topics=topic, handler=fail, size=2, cluster=cluster, **config) as consumers:
        fill(cluster, topic, PARTITIONS)
        with pytest.raises(
            RaylogError, match=r"has failed: .*-\d, offset 0: the handler raised ValueError: no such order"
        ):
            consumers.drain(WAIT_S)


def test_a_member_that_ray_does_not_start_again_has_failed(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    name, options = f"group-of-{topic}", {"max_restarts": 0}
    handler = noting(tmp_path / "handled")
    with group(name, topics=topic, handler=handler, size=2, cluster=cluster, actor_options=options) as consumers:
        victim = consumers.status().members[1].pid
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(RaylogError, match=rf"member 1 has failed: .*not start it again.*pid: {victim} .*died"):
            consumers.drain(WAIT_S)
        states = [member.status.state for member in consumers.status().members]
        assert states == [State.RUNNING, State.FAILED]


def test_actors_end_with_the_process_that_made_them(
    three_brokers: RunningCluster, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """kill -9 of the driver: Ray ends its actors, and the next ones have their partitions."""
    fill(cluster, topic, PARTITIONS)
    name = f"group-of-{topic}"
    script = (
        "import threading\n"
        "from raylog.client import connect, group\n"
        f"cluster = connect(data_dir={str(three_brokers.data_dir)!r})\n"
        f"made = group({name!r}, topics={topic!r}, handler=lambda records: None, cluster=cluster)\n"
        "print(*(member.pid for member in made.status().members), flush=True)\n"
        "threading.Event().wait()\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert len(pids) == 1
    finally:
        driver.kill()
        driver.communicate()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), WAIT_S, "its actors are gone")
    with group(name, topics=topic, handler=print, cluster=cluster) as consumers:
        assert set(owners(consumers).values()) == {0}
