"""Errors of handlers that cannot be told, or hardly: the member goes on, or says why not, and nothing is hidden."""

from __future__ import annotations

import io
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled
from kit.waiting import wait_until
from kit.zookeeper import running_zookeeper
from raylog.client import Admin, Consumer, ConsumerRecord, Producer
from raylog.client.handlers.core import Counts
from raylog.client.handlers.plan import GroupPlan
from raylog.client.handlers.runner import HandlerRunner, MemberStatus, State
from raylog.protocol.ids import TopicPartition

pytestmark = pytest.mark.system

WAIT_S = 30.0
COUNT = 10
REFUSED = 7
LARGEST = 1 << 20
_numbers = count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    root = tmp_path_factory.mktemp("errors")
    with (
        running_zookeeper(root / "zookeeper") as server,
        InProcessCluster(root, zookeeper=server.address) as running_cluster,
    ):
        yield running_cluster


@pytest.fixture
def topic(cluster: InProcessCluster) -> str:
    """With the records 0 to COUNT - 1 in one partition."""
    name = f"orders-{next(_numbers)}"
    cluster.create_topic(name, partitions=1)
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(COUNT):
            producer.send(name, b"%d" % number)
    return name


@pytest.fixture
def strict_log() -> Iterator[io.BytesIO]:
    """What is logged, on a stream that takes no surrogates and no second chance, as a worker of Ray has it."""

    class Handler(logging.StreamHandler[io.TextIOWrapper]):
        def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
            raise  # noqa: PLE0704 (called while an error is handled)

    written = io.BytesIO()
    handler = Handler(io.TextIOWrapper(written, "utf-8", "strict"))
    logging.getLogger().addHandler(handler)
    try:
        yield written
    finally:
        logging.getLogger().removeHandler(handler)


class Mute(Exception):
    """Says nothing, whoever asks."""

    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


ODD: dict[str, Callable[[], Exception]] = {
    "surrogates": lambda: ValueError("no order caf\udce9"),
    "huge": lambda: ValueError("x" * 20_000_000),
    "mute": Mute,
}


def refusing(error: Callable[[], Exception], seen: Counter[bytes]) -> Callable[[list[ConsumerRecord]], None]:
    def handle(records: list[ConsumerRecord]) -> None:
        values = [record.value for record in records]
        if b"%d" % REFUSED in values:
            raise error()
        seen.update(values)

    return handle


def plan_of(cluster: InProcessCluster, topic: str, handler: Any, **config: Any) -> GroupPlan:
    given = {"auto_offset_reset": "earliest", "errors_retry_timeout": 0, **config}
    given.pop("batch_format", None)
    plan = GroupPlan.of(
        f"group-{next(_numbers)}",
        cluster.bootstrap_servers,
        topic,
        handler,
        batch_format=config.pop("batch_format", "rows"),
        key_deserializer=None,
        value_deserializer=None,
        config={name: value for name, value in given.items() if value is not None},
    )
    plan.prepare()
    return plan


@contextmanager
def running(plan: GroupPlan) -> Iterator[HandlerRunner]:
    """A member in a thread; it is stopped at the end, and waited for."""
    runner = plan.runner()
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    try:
        yield runner
    finally:
        runner.stop()
        thread.join(scaled(WAIT_S))
        assert not thread.is_alive()


def letters_of(cluster: InProcessCluster, dead: str) -> list[tuple[bytes | None, dict[str, str]]]:
    with Consumer(cluster.bootstrap_servers, [dead], auto_offset_reset="earliest") as consumer:
        return [
            (record.value, {name: (value or b"").decode() for name, value in record.headers})
            for record in consumer.iterate(until_end=True)
        ]


@pytest.mark.parametrize("odd", ODD)
def test_member_goes_on_whatever_its_handler_raises(
    cluster: InProcessCluster, topic: str, strict_log: io.BytesIO, odd: str
) -> None:
    seen: Counter[bytes] = Counter()
    dead = f"{topic}.dead"
    config = {"errors_tolerance": "all", "errors_deadletterqueue_topic_name": dead}
    with running(plan_of(cluster, topic, refusing(ODD[odd], seen), **config)) as member:
        wait_until(
            lambda: member.status.counts.handled == COUNT - 1 or member.status.state is State.FAILED,
            WAIT_S,
            "the others are handled",
            instead=lambda: member.status,
        )
        status = member.status
        assert (status.state, status.counts.dead_lettered) == (State.RUNNING, 1)
        assert type(ODD[odd]()).__name__ in status.last_error
        assert len(status.last_error) < 5_000
    [(value, headers)] = letters_of(cluster, dead)
    assert value == b"%d" % REFUSED
    assert headers["__connect.errors.offset"] == str(REFUSED)
    assert headers["__connect.errors.exception.class.name"].endswith(type(ODD[odd]()).__name__)
    assert headers["__connect.errors.exception.message"]
    assert "in handle" in headers["__connect.errors.exception.stacktrace"]
    assert b"the handler raised for 1 records from offset 7 on" in strict_log.getvalue()


@pytest.mark.parametrize("odd", ODD)
def test_member_that_stops_for_an_odd_error_says_so(
    cluster: InProcessCluster, topic: str, strict_log: io.BytesIO, odd: str
) -> None:
    with running(plan_of(cluster, topic, refusing(ODD[odd], Counter()))) as member:
        wait_until(lambda: member.status.state is State.FAILED, WAIT_S, "it stops", instead=lambda: member.status)
    raised = type(ODD[odd]()).__name__
    assert member.status.trouble.startswith(f"{topic}-0, offsets 0 to {COUNT - 1}: the handler raised {raised}: ")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_exit_in_a_handler_is_told_with_its_place(
    cluster: InProcessCluster, topic: str, error: type[BaseException]
) -> None:
    def leave(records: list[ConsumerRecord]) -> None:
        raise error

    with running(plan_of(cluster, topic, leave, errors_tolerance="all")) as member:
        wait_until(lambda: member.status.state is State.FAILED, WAIT_S, "it stops", instead=lambda: member.status)
    assert member.status.trouble == f"{topic}-0, offsets 0 to {COUNT - 1}: the handler raised {error.__name__}: "


def test_answer_that_is_still_to_be_done_is_not_success(cluster: InProcessCluster, topic: str) -> None:
    """Whatever is tolerated: every batch would be answered so."""
    plan = plan_of(cluster, topic, lambda records: (r for r in records), errors_tolerance="all")
    with running(plan) as member:
        wait_until(lambda: member.status.state is State.FAILED, WAIT_S, "it stops", instead=lambda: member.status)
    assert (
        f"{topic}-0, offsets 0 to {COUNT - 1}: InvalidConfig: handler: it answered a generator" in member.status.trouble
    )
    assert member.status.counts == Counts()
    with Admin(cluster.bootstrap_servers) as admin:
        assert admin.list_group_offsets(plan.group) == {}


def test_exactly_once_stops_where_the_log_lacks_what_the_store_says(cluster: InProcessCluster, topic: str) -> None:
    """As after the topic was made anew: read from either end, records would come twice, or be left out."""
    seen: list[int] = []

    class Ahead:
        def __call__(self, records: list[ConsumerRecord]) -> None:
            seen.extend(record.offset for record in records)

        def on_assigned(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
            return dict.fromkeys(partitions, COUNT + 1)

    plan = plan_of(cluster, topic, Ahead, processing_guarantee="exactly_once", auto_offset_reset=None)
    with running(plan) as member:
        wait_until(lambda: member.status.state is State.FAILED, WAIT_S, "it stops", instead=lambda: member.status)
    assert member.status.trouble.startswith(f"PositionLost: {topic}-0: offset {COUNT + 1} is out of range")
    assert seen == []


@pytest.mark.parametrize("second", [OSError, SystemExit])
def test_error_in_closing_hides_no_other(cluster: InProcessCluster, topic: str, second: type[BaseException]) -> None:
    class Closing:
        def __call__(self, records: list[ConsumerRecord]) -> None:
            raise ValueError("no such order")

        def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            raise second("cannot give up")

        def close(self) -> None:
            raise second("cannot close")

    with running(plan_of(cluster, topic, Closing)) as member:
        wait_until(lambda: member.status.state is State.FAILED, WAIT_S, "it stops")
    assert member.status.trouble.endswith("the handler raised ValueError: no such order")


@pytest.mark.parametrize("batch_format", ["rows", "pyarrow"])
def test_dead_letter_of_a_time_that_its_topic_refuses(cluster: InProcessCluster, batch_format: str) -> None:
    topic, dead, far = f"orders-{next(_numbers)}", f"dead-{next(_numbers)}", 2**50
    cluster.create_topic(topic, partitions=1, config={"message.timestamp.after.max.ms": str(2**62)})
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send(topic, b"far", timestamp=far, headers=[("mine", b"h")]).result(scaled(WAIT_S))

    def refuse(records: Any) -> None:
        raise ValueError("no such order")

    config = {"errors_tolerance": "all", "errors_deadletterqueue_topic_name": dead, "batch_format": batch_format}
    with running(plan_of(cluster, topic, refuse, **config)) as member:
        wait_until(
            lambda: member.status.counts.dead_lettered == 1 or member.status.state is State.FAILED,
            WAIT_S,
            "it is put aside",
            instead=lambda: member.status,
        )
        assert member.status.state is State.RUNNING
    [(value, headers)] = letters_of(cluster, dead)
    assert (value, headers["mine"], headers["__raylog.errors.timestamp"]) == (b"far", "h", str(far))
    assert headers["__connect.errors.exception.message"] == "no such order"


def test_dead_letter_of_a_record_of_the_largest_size(cluster: InProcessCluster) -> None:
    """Its headers would make it larger than its topic takes: it goes without the trace, or without itself."""
    topic, dead = f"orders-{next(_numbers)}", f"dead-{next(_numbers)}"
    cluster.create_topic(topic, partitions=1, config={"max.message.bytes": str(4 * LARGEST)})
    cluster.create_topic(dead, partitions=1, config={"max.message.bytes": str(LARGEST)})
    sizes = [LARGEST - 50_000, LARGEST - 2_000, LARGEST - 200, 2 * LARGEST, 10]
    with Producer(cluster.bootstrap_servers, max_request_size=4 * LARGEST) as producer:
        for size in sizes:
            producer.send(topic, b"v" * size, headers=[("mine", b"h")]).result(scaled(WAIT_S))

    def refuse(records: list[ConsumerRecord]) -> None:
        raise ValueError("too odd " + "x" * 3_000)

    config = {"errors_tolerance": "all", "errors_deadletterqueue_topic_name": dead, "max_poll_records": 1}
    plan = plan_of(cluster, topic, refuse, **config)
    with running(plan) as member:
        wait_until(
            lambda: member.status.counts.dead_lettered == len(sizes) or member.status.state is State.FAILED,
            WAIT_S,
            "all are put aside",
            instead=lambda: member.status,
        )
        assert member.status.counts == Counts(failures=len(sizes), dead_lettered=len(sizes))
    letters = letters_of(cluster, dead)
    assert [len(value or b"") for value, _ in letters] == [sizes[0], sizes[1], 0, 0, 10]
    assert [int(headers["__connect.errors.offset"]) for _, headers in letters] == list(range(len(sizes)))
    assert ["__connect.errors.exception.stacktrace" in headers for _, headers in letters] == [
        True, False, True, True, True,
    ]  # fmt: skip
    assert ["mine" in headers for _, headers in letters] == [True, True, False, False, True]
    assert letters[3][1]["__raylog.errors.left.out"] == f"key and value of {2 * LARGEST} bytes, 1 headers"
    with Admin(cluster.bootstrap_servers) as admin:
        [committed] = admin.list_group_offsets(plan.group).values()
    assert committed.offset == len(sizes)


def test_status_of_an_ended_thread_is_not_running() -> None:
    ended = MemberStatus(state=State.RUNNING, last_error="ValueError: no such order").of_ended()
    assert (ended.state, ended.trouble) == (State.FAILED, "its thread has ended; see the log of its process")
    stopped = MemberStatus(state=State.STOPPED)
    assert stopped.of_ended() is stopped
