"""A broker's host has several addresses, and the first is dead: every client goes on with the next one in time.

The name is one of the system's, in a process that has a hosts file of its own.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled
from raylog.coordination.host.free_ports import free_port

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0,
        reason="a hosts file of its own needs a mount namespace",
    ),
]

HOST = "broker.test"
DROPS, REFUSES, LIVE = "127.0.0.1", "127.0.0.3", "127.0.0.9"
"""In this order the system answers them: those that have more of the source's address in common come first."""
SETUP_MS = 300
CLIENTS = """
import asyncio, json, socket, sys, time
from raylog.client import Admin, Consumer, Producer
from raylog.client.aio import AsyncConsumer, AsyncProducer
from raylog.client.cluster import Cluster

host, port, setup_ms = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
given = {"bootstrap_servers": f"{host}:{port}", "socket_connection_setup_timeout_ms": setup_ms}
reads = {**given, "topics": "t", "auto_offset_reset": "earliest"}

def producer():
    with Producer(**given, linger_ms=0) as made:
        made.send("t", b"v").result(60)

def batches():
    with Producer(**given) as made:
        made.send_batch("t", [b"v"]).result(60)

async def async_producer():
    async with AsyncProducer(**given, linger_ms=0) as made:
        await (await made.aiosend("t", b"v"))

def consumer():
    with Consumer(**reads) as made:
        assert made.poll(60_000)

def columns():
    with Consumer(**reads) as made:
        assert made.poll_columns(60_000).num_rows

async def async_consumer():
    async with AsyncConsumer(**reads) as made:
        assert await made.poll(60_000)

def admin():
    with Admin(**given) as made:
        assert made.list_topics() and made.list_offsets({("t", 0): -1})

took = {}
for client in (producer, batches, async_producer, consumer, columns, async_consumer, admin):
    begun = time.monotonic()
    made = client()
    if made is not None:
        asyncio.run(made)
    took[client.__name__] = time.monotonic() - begun
addresses = [at[0] for *_, at in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
print(json.dumps({"took": took, "addresses": addresses}))
"""


@contextmanager
def dropping(port: int) -> Iterator[None]:
    """Packets to DROPS are dropped: by a listener that accepts nobody, once its queue is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((DROPS, port))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((DROPS, port))
        yield


@pytest.mark.parametrize("addresses", [(LIVE,), (DROPS, LIVE), (REFUSES, LIVE), (DROPS, REFUSES, LIVE)], ids=",".join)
def test_every_client_goes_on_with_the_next_address(tmp_path: Path, addresses: tuple[str, ...]) -> None:
    port = free_port(LIVE)
    listeners = {"listeners": f"PLAINTEXT://{LIVE}:{port}", "advertised.listeners": f"PLAINTEXT://{HOST}:{port}"}
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {HOST}\n" for address in addresses))
    in_namespace = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'
    client = [sys.executable, "-c", CLIENTS, HOST, str(port), str(SETUP_MS)]
    with InProcessCluster(tmp_path / "cluster", brokers=1, config=listeners) as cluster, dropping(port):
        cluster.create_topic("t", partitions=1)
        ended = subprocess.run(
            ["unshare", "--mount", "sh", "-c", in_namespace, "sh", str(hosts), *client],
            capture_output=True,
            text=True,
            timeout=scaled(100),
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["addresses"] == list(addresses)
    assert {client: took for client, took in found["took"].items() if took > 8} == {}, "the default gives up after 10 s"
