"""`raylog produce` and `raylog consume`: where records come from, where they go, and where reading begins and ends."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.commands import RAYLOG, environment, one_line, run, started
from kit.machine import scaled
from kit.waiting import wait_until
from raylog.client import Consumer, Producer
from raylog.client.cli.consume import Ends, print_records
from raylog.client.cli.terminal.records import formatter

pytestmark = pytest.mark.system

BEGUN = 1_700_000_000_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    config = {"auto.create.topics.enable": "false"}
    with InProcessCluster(tmp_path / "brokers", config=config) as running:
        running.create_topic("t", partitions=2)
        running.create_topic("copy")
        yield running


def fill(cluster: InProcessCluster) -> None:
    """Ten records in each partition of ``t``, a second apart."""
    with Producer(cluster.bootstrap_servers) as producer:
        for n in range(20):
            producer.send("t", b"v%d" % n, partition=n % 2, timestamp=BEGUN + n // 2 * 1_000)


def consumed(cluster: InProcessCluster, *arguments: str) -> list[str]:
    """The lines that ``raylog consume t --until-end ARGUMENTS`` prints."""
    done = run(cluster, "consume", "t", "--until-end", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_reading_begins_where_it_is_told_and_ends_at_the_end(cluster: InProcessCluster) -> None:
    fill(cluster)
    odd = [f"v{n}" for n in range(1, 20, 2)]
    assert sorted(consumed(cluster, "--from-beginning")) == sorted(f"v{n}" for n in range(20))
    assert consumed(cluster) == []
    assert consumed(cluster, "--partition", "1", "--offset", "beginning") == odd
    assert consumed(cluster, "--partition", "1", "--offset", "7") == odd[7:]
    assert consumed(cluster, "--partition", "1", "--offset", "-2") == odd[-2:]
    assert consumed(cluster, "--partition", "1", "--offset", "-99") == odd
    assert consumed(cluster, "--partition", "1", "--timestamp", str(BEGUN + 7_500)) == odd[8:]
    assert consumed(cluster, "--timestamp", "2030-01-01T00:00+00:00") == []
    assert consumed(cluster, "--partition", "1", "--offset", "0", "--max-messages", "3", "--format", "%o %s\n") == [
        "0 v1", "1 v3", "2 v5",
    ]  # fmt: skip


def test_the_end_is_where_it_was_when_reading_began(
    cluster: InProcessCluster, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    fill(cluster)
    with Consumer(cluster.bootstrap_servers, ["t"]) as consumer:
        consumer.seek_to_beginning()
        ends = Ends(consumer, [("t", 0), ("t", 1)])
        fill(cluster)
        print_records(consumer, formatter("%p-%o\n"), None, ends)
    assert sorted(capsysbinary.readouterr().out.decode().split()) == sorted(
        f"{partition}-{offset}" for partition in (0, 1) for offset in range(10)
    )


def test_what_cannot_be_read_is_told_loudly(cluster: InProcessCluster) -> None:
    fill(cluster)
    one_line(run(cluster, "consume", "t", "--partition", "1", "--offset", "11"), "t-1", "11", "0 to 10")
    one_line(run(cluster, "consume", "t", "--partition", "2"), "partitions 0 to 1, not 2")


def test_keys_headers_and_partitions_are_taken_from_the_command_line(cluster: InProcessCluster, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"k1\tv1\nk2\t\xff\n")
    sent = run(
        cluster, "produce", "t", "--file", str(file), "--key-separator", "\\t", "--partition", "1",
        "--headers", "a=1", "--headers", "b=x=y",
    )  # fmt: skip
    assert (sent.returncode, sent.stdout, sent.stderr) == (0, "", "sent 2 records to t\n")
    with Consumer(cluster.bootstrap_servers, ["t"], auto_offset_reset="earliest") as consumer:
        records = list(consumer.iterate(until_end=True))
    assert [(r.partition, r.key, r.value) for r in records] == [(1, b"k1", b"v1"), (1, b"k2", b"\xff")]
    assert list(records[0].headers) == [("a", b"1"), ("b", b"x=y")]


def test_json_carries_records_from_topic_to_topic(cluster: InProcessCluster) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send("t", b"\xff", "k", headers=[("h", None)], timestamp=BEGUN, partition=0)
        producer.send("t", None, b"gone", timestamp=BEGUN + 1, partition=0)
    written = "\n".join(consumed(cluster, "--from-beginning", "--format", "json"))
    assert run(cluster, "produce", "copy", "--format", "json", stdin=written).returncode == 0
    with Consumer(cluster.bootstrap_servers, ["copy"], auto_offset_reset="earliest") as consumer:
        records = [(r.key, r.value, list(r.headers), r.timestamp) for r in consumer.iterate(until_end=True)]
    assert records == [(b"\xa1k", b"\xff", [("h", None)], BEGUN), (b"gone", None, [], BEGUN + 1)]


def test_values_of_our_producer_are_readable(cluster: InProcessCluster) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send("t", {"page": 1}, "user-1")
    assert consumed(
        cluster, "--from-beginning", "--key-deserializer", "msgpack", "--value-deserializer", "msgpack",
        "--format", "%k %s\n",
    ) == ['user-1 {"page": 1}']  # fmt: skip


def test_a_bad_line_ends_it_and_is_told_by_its_number(cluster: InProcessCluster) -> None:
    lines = json.dumps({"value": "good"}) + "\nbad\n"
    one_line(run(cluster, "produce", "t", "--format", "json", stdin=lines), "line 2", "'bad'", "1 records before it")
    one_line(run(cluster, "produce", "t", "--file", "/nosuch"), "/nosuch", "No such file")
    one_line(run(cluster, "produce", "t", "--partition", "2", stdin="x"), "partitions 0 to 1, not 2")
    assert consumed(cluster, "--from-beginning") == ["good"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_what_was_read_before_a_signal_is_delivered(
    cluster: InProcessCluster, number: signal.Signals, code: int
) -> None:
    with started(cluster, "produce", "copy") as sender, Consumer(cluster.bootstrap_servers, ["copy"]) as consumer:
        assert sender.stdin is not None
        sender.stdin.write("a\nb\n")
        sender.stdin.flush()
        wait_until(lambda: consumer.end_offsets([("copy", 0)])[("copy", 0)] == 2, 20, "both records are there")
        sender.send_signal(number)
        assert sender.wait(scaled(30)) == code
        assert sender.stderr is not None
        assert sender.stderr.read() == "interrupted; sent 2 records to copy\n"


def test_progress_is_shown_on_a_terminal(cluster: InProcessCluster, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"x\n" * 100_000)
    ours, theirs = pty.openpty()
    command = [RAYLOG, "produce", "t", "--file", str(file), "--bootstrap-server", cluster.bootstrap_servers]
    shown = b""

    def ended() -> bool:
        nonlocal shown
        shown += os.read(ours, 65_536)
        return b"sent 100000 records" in shown

    with subprocess.Popen(command, stderr=theirs, stdout=subprocess.PIPE, env=environment(cluster.root)) as sending:
        os.close(theirs)
        try:
            wait_until(ended, 30, "the records are sent")
            assert sending.wait(scaled(30)) == 0
        finally:
            sending.kill()
            os.close(ours)
    assert b"records/s" in shown
    assert b"%" in shown


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"null", "line 3: 'null' is no record: it is null, no object; write one like {"),
        (b"[1]", "line 3: '[1]' is no record: it is [1], no object; write one like {"),
        (b"\xff\xfe", "line 3: '\ufffd\ufffd' is no record: it is no UTF-8; write one like {"),
        (b'{"value": "v", "headers": ["ab"]}', 'is no record: a header is "ab", no list; write one like {'),
        (b'{"value": "v", "timestamp": -2}', "line 3: copy: timestamp -2 is not in milliseconds since 1970"),
        (b'{"value": "%b"}' % (b"x" * 2_000_000), "line 3: copy: a record of 2000021 bytes; max.request.size"),
    ],
)
def test_line_that_cannot_be_sent_is_told_with_its_number(
    cluster: InProcessCluster, tmp_path: Path, line: bytes, complaint: str
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b'{"value": "a"}\n{"value": "b"}\n' + line + b'\n{"value": "c"}\n')
    done = run(cluster, "produce", "copy", "--format", "json", "--file", str(file))
    one_line(done, complaint, "2 records before it were sent")
