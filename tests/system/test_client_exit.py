"""Scripts that send and end without closing their producers: nothing is lost, or it is said what."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled
from kit.proxied import proxied
from kit.proxy import Fate
from kit.reading import all_records

PRODUCE = 0
COUNT = 1_000
BEGIN = """
import asyncio, multiprocessing, os, queue, signal, sys, threading, time
from raylog.client import Producer
from raylog.client.aio import AsyncProducer
from raylog.client.produce.exit_flush import close_all, remember

servers, name = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in its background

def send(**config):
    producer = Producer(servers, **config)
    for n in range(1_000):
        producer.send("t", b"%s %d" % (name.encode(), n))

async def send_in_loop():
    producer = AsyncProducer(servers, linger_ms=60_000)
    for n in range(1_000):
        await producer.aiosend("t", b"%s %d" % (name.encode(), n))
"""
SCRIPTS = {
    "a producer": "send()",
    "lingering": "send(linger_ms=60_000)",
    "without acks": "send(acks=0, linger_ms=60_000)",
    "it exits by itself": "send(linger_ms=60_000); sys.exit(0)",
    "a loop that is over": "asyncio.run(send_in_loop())",
    "a daemon's": """
thread = threading.Thread(target=send, kwargs={"linger_ms": 60_000}, daemon=True)
thread.start()
thread.join()
""",
    "a loop in a daemon": """
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
asyncio.run_coroutine_threadsafe(send_in_loop(), loop).result()
""",
    "a forked child's": """
before = Producer(servers)
before.send("t", b"before").result(20)
if os.fork() == 0:
    send(linger_ms=60_000)
else:
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
""",
    "a child's of multiprocessing": """
multiprocessing.set_start_method("fork")
child = multiprocessing.Process(target=send, kwargs={"linger_ms": 60_000})
child.start()
child.join()
sys.exit(child.exitcode)
""",
}


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", BEGIN + script, *arguments],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path_factory.mktemp("cluster"), brokers=1) as running:
        running.create_topic("t", partitions=3)
        yield running


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_script_that_only_sends_loses_nothing(cluster: InProcessCluster, kind: str) -> None:
    name = kind.replace(" ", "-")
    ended = run(SCRIPTS[kind], cluster.bootstrap_servers, name)
    assert (ended.returncode, ended.stderr) == (0, "")
    values = [record.value.decode() for record in all_records(cluster.bootstrap_servers, "t")]
    found = sorted(int(value.rpartition(" ")[2]) for value in values if value.startswith(f"{name} "))
    assert found == list(range(COUNT))


def test_what_was_not_sent_is_told_and_all_share_one_bound(tmp_path: Path) -> None:
    """Three producers whose records a broker never answers."""
    script = """
producers = [Producer(servers, linger_ms=0, client_id=f"c{n}") for n in range(3)]
for producer in producers:
    for n in range(10):
        producer.send("t", b"x", partition=n % 2)
begun = time.monotonic()
close_all(1.5)
print(time.monotonic() - begun)
"""
    with proxied(tmp_path) as (_, proxy, servers):
        proxy.on_answer = lambda key: Fate.DROP if key == PRODUCE else Fate.PASS
        ended = run(script, servers, "")
    assert ended.returncode == 0
    assert ended.stderr.count("10 records were not delivered within 1.5 s: t-0: 5, t-1: 5") == 3, ended.stderr
    assert 1.4 < float(ended.stdout) < 3.5


KINDS = {
    "threads": """
def begin(**config):
    producer = Producer(servers, linger_ms=60_000, **config)
    return [producer.send("t", b"x") for n in range(10)]
""",
    "asyncio": """
def begin(**config):
    async def send():
        producer = AsyncProducer(servers, linger_ms=60_000, **config)
        return [await producer.aiosend("t", b"x") for n in range(10)]
    return asyncio.run(send())
""",
}


def ends_and_tells_what_keeps_it(script: str, cluster: InProcessCluster) -> str:
    """The process ends although a producer's thread does not; what it wrote to stderr."""
    ended = run(script, cluster.bootstrap_servers, "")
    assert ended.returncode == 0
    assert "a delivery callback or an interceptor keeps it" in ended.stderr
    assert float(ended.stdout) < 4
    return ended.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_delivery_callback_that_blocks_does_not_keep_the_process(cluster: InProcessCluster, kind: str) -> None:
    script = """
handed_out = queue.Queue(maxsize=1)
for delivery in begin():
    delivery.add_done_callback(handed_out.put)
begun = time.monotonic()
close_all(1.5)
print(time.monotonic() - begun)
"""
    ends_and_tells_what_keeps_it(KINDS[kind] + script, cluster)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interceptor_that_blocks_when_closed_does_not_keep_the_process(cluster: InProcessCluster, kind: str) -> None:
    script = """
from raylog.client import ProducerInterceptor

class Blocks(ProducerInterceptor):
    def close(self):
        threading.Event().wait()

begin(interceptors=[Blocks()])
begun = time.monotonic()
close_all(1.5)
print(time.monotonic() - begun)
"""
    assert "were not delivered" not in ends_and_tells_what_keeps_it(KINDS[kind] + script, cluster)


@pytest.mark.parametrize("kind", KINDS)
def test_the_thread_that_ends_the_process_runs_no_callback(cluster: InProcessCluster, kind: str) -> None:
    """As Java's producer, which calls them in its own thread. Each is told, and interceptors are closed once."""
    script = """
from raylog.client import ProducerInterceptor

class Told(ProducerInterceptor):
    def __init__(self):
        self.told = []
    def on_acknowledgement(self, at, error):
        self.told.append((threading.current_thread() is threading.main_thread(), error))
    def close(self):
        self.told.append("closed")

told = Told()
begin(interceptors=[told])
close_all(20)
assert told.told == [(False, None)] * 10 + ["closed"], told.told
"""
    ended = run(KINDS[kind] + script, cluster.bootstrap_servers, "")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_records_without_acks_that_do_not_leave_are_told_in_time(tmp_path: Path) -> None:
    """A broker that has stopped to read: what is more than fits into the sockets waits here."""
    script = """
producer = Producer(servers, acks=0, linger_ms=0, batch_size=1_000_000)
for n in range(30):
    producer.send("t", b"x" * 900_000, partition=0)
begun = time.monotonic()
close_all(1.5)
print(time.monotonic() - begun)
"""
    may_read = Event()

    def hold(key: int) -> Fate:
        if key == PRODUCE:
            may_read.wait(scaled(60))
        return Fate.PASS

    with proxied(tmp_path) as (_, proxy, servers):
        proxy.on_request = hold
        try:
            ended = run(script, servers, "")
        finally:
            may_read.set()
    assert ended.returncode == 0
    assert "sent with acks=0, did not leave" in ended.stderr
    assert float(ended.stdout) < 4


@pytest.mark.parametrize("moment", ["hurry", "close_at_exit", "wait"])
def test_an_interrupt_ends_the_wait_and_all_that_is_lost_is_told(tmp_path: Path, moment: str) -> None:
    """It comes while all are told to hurry, while one is closed, or while the next one's records are waited for."""
    script = """
class Interrupting:
    def hurry(self):
        self.interrupt("hurry")
        return []
    def close_at_exit(self, timeout_s):
        self.interrupt("close_at_exit")
        if name == "wait":
            threading.Timer(0.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
    def interrupt(self, moment):
        global name
        if name == moment:
            name = "it came"
            signal.raise_signal(signal.SIGINT)

remember(Interrupting())
producers = [Producer(servers, linger_ms=0) for n in range(3)]
for producer in producers:
    for n in range(10):
        producer.send("t", b"x", partition=0)
begun = time.monotonic()
try:
    close_all(30)
except KeyboardInterrupt:
    print(time.monotonic() - begun)
"""
    with proxied(tmp_path) as (_, proxy, servers):
        proxy.on_answer = lambda key: Fate.DROP if key == PRODUCE else Fate.PASS
        ended = run(script, servers, moment)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("10 records were not delivered before it was interrupted: t-0: 10") == 3, ended.stderr
    assert float(ended.stdout) < 10
