"""The socket server with real connections: order, limits, waiting, stopping."""

from __future__ import annotations

import gc
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from kit.machine import scaled
from kit.node import Node
from kit.slow_files import StuckDisk
from kit.waiting import wait_until
from kit.wire import WireClient, fetch_request, produce_request, request
from raylog.broker.net.acceptor import BURST
from raylog.broker.net.server import Listener, SocketServer, _Errand
from raylog.broker.storage.disk.files import RealFileSystem
from raylog.protocol.records import Record, decode_batches, encode_batch
from raylog.protocol.wire.fetch import FetchPartition, FetchRequest, FetchTopic, parse_fetch_response
from raylog.protocol.wire.primitives import ZERO_UUID
from raylog.protocol.wire.produce import parse_produce_response

Address = tuple[str, int]
WAIT_S = 10.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as node:
        node.create_topic("t", partitions=2)
        yield node


def batch(value: bytes) -> bytes:
    return encode_batch([Record(value)])


def fetch(offset: int = 0, *, partition: int = 0, max_wait_ms: int = 0, max_bytes: int = 1 << 20) -> FetchRequest:
    part = FetchPartition(partition, offset, max_bytes)
    return FetchRequest(max_wait_ms, 1, [FetchTopic("t", ZERO_UUID, [part])])


def values(data: memoryview | None) -> list[bytes | None]:
    return [record.value for record in decode_batches(data or b"")]


def test_what_was_produced_is_fetched(node: Node) -> None:
    with WireClient(node.serve()) as client:
        big = os.urandom(900_000)
        for value in (b"first", big, b"last"):
            assert client.produce("t", batch(value)).topics[0].partitions[0].error_code == 0
        [topic] = client.fetch(12, fetch(max_bytes=8 << 20)).topics
        assert values(topic.partitions[0].records) == [b"first", big, b"last"]


def test_pipelined_requests_are_answered_in_order(node: Node) -> None:
    with WireClient(node.serve()) as client:
        frames = []
        for number in range(0, 60, 3):
            frames.append(produce_request("t", batch(b"%d" % number), correlation_id=number))
            frames.append(request(3, 9, topics=None, correlation_id=number + 1))
            frames.append(fetch_request(12, fetch(number // 3), correlation_id=number + 2))
        client.send(b"".join(frames))
        answered = [struct.unpack(">i", client.receive()[:4])[0] for _ in frames]
        assert answered == list(range(60))


def test_large_replies_and_requests_that_wait_are_answered_in_order(node: Node) -> None:
    """What is sent in turns, and what another thread answers meanwhile, in front of a client that reads slowly."""
    address = node.serve()
    with WireClient(address) as client, WireClient(address) as other:
        other.produce("t", batch(os.urandom(900_000)))
        frames = []
        for number in range(0, 60, 2):
            frames.append(fetch_request(12, fetch(), correlation_id=number))
            frames.append(request(3, 9, topics=None, correlation_id=number + 1))
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.send(b"".join(frames))
        for number in range(60):
            other.produce("t", batch(b"x"), partition=1)
            assert struct.unpack(">i", client.receive()[:4])[0] == number


@pytest.mark.parametrize("acks", [True, False], ids=["produce", "delete records"])
def test_request_stops_waiting_when_its_client_leaves(node: Node, acks: bool) -> None:
    """It may name 24 days, and each client that gave up would leave its connection and its thread behind."""
    node.create_topic("r", replicas=(1, 2))
    table = node.ports.produces if acks else node.ports.deletes
    forever = timedelta(milliseconds=2**31 - 1)
    asked = [{"name": "r", "partitions": [{"partition_index": 0, "offset": -1}]}]
    with WireClient(node.serve()) as client:
        if acks:
            client.send(produce_request("r", batch(b"x"), acks=-1, timeout_ms=2**31 - 1))
        else:
            client.send(request(21, 2, topics=asked, timeout=forever))
        wait_until(lambda: table.waiting == 1, WAIT_S, "the request waits")
    server = node.server
    assert server is not None
    wait_until(lambda: (table.waiting, server.connection_count) == (0, 0), WAIT_S, "nobody waits")


def test_replies_to_batches_do_not_wait_for_a_long_poll_behind_them(node: Node) -> None:
    with WireClient(node.serve()) as client:
        poll = fetch_request(12, fetch(max_wait_ms=60_000, partition=1))
        client.send(b"".join(produce_request("t", batch(b"%d" % number)) for number in range(20)) + poll)
        offsets = [parse_produce_response(9, client.receive())[1].topics[0].partitions[0] for _ in range(20)]
        assert [part.base_offset for part in offsets] == list(range(20))


def test_replies_to_batches_do_not_wait_for_a_bad_frame_behind_them(node: Node) -> None:
    with WireClient(node.serve()) as client:
        client.send(produce_request("t", batch(b"good")) + struct.pack(">i", -1))
        assert parse_produce_response(9, client.receive())[1].topics[0].partitions[0].error_code == 0
        assert client.closed()


def test_frames_may_arrive_byte_by_byte(node: Node) -> None:
    with WireClient(node.serve()) as client:
        for byte in produce_request("t", batch(b"slow")):
            client.send(bytes([byte]))
        _, response = parse_produce_response(9, client.receive())
        assert response.topics[0].partitions[0].base_offset == 0


def test_a_long_poll_is_woken_by_another_client(node: Node) -> None:
    address = node.serve()
    with WireClient(address) as consumer, WireClient(address) as producer:
        consumer.send(fetch_request(12, fetch(max_wait_ms=60_000)))
        wait_until(lambda: len(node.delayed), WAIT_S, "the fetch waits")
        producer.produce("t", batch(b"news"))
        _, response = parse_fetch_response(12, consumer.receive())
        assert values(response.topics[0].partitions[0].records) == [b"news"]


def test_a_long_poll_of_a_client_that_left_ends_soon(node: Node) -> None:
    client = WireClient(node.serve())
    client.send(fetch_request(12, fetch(max_wait_ms=60_000)))
    wait_until(lambda: len(node.delayed), WAIT_S, "the fetch waits")
    client.sock.close()
    server = node.server
    assert server is not None
    wait_until(lambda: not server.connection_count, WAIT_S, "the connection has ended")
    wait_until(lambda: len(node.delayed) == 0, WAIT_S, "nothing waits")


def test_connections_beyond_max_connections_are_closed(tmp_path: Path) -> None:
    with Node(tmp_path, config={"max.connections": "2"}) as node:
        address = node.serve()
        with WireClient(address) as one, WireClient(address) as two:
            one.ask(3, 9), two.ask(3, 9)
            with WireClient(address) as three:
                assert three.closed()
            assert one.ask(3, 9).brokers
        server = node.server
        assert server is not None
        wait_until(lambda: not server.connection_count, WAIT_S, "the connections have ended")
        with WireClient(address) as again:
            assert again.ask(3, 9).brokers


@pytest.mark.parametrize("begun", [b"", b"\x00\x00\x00\x63half a frame"])
def test_idle_connections_are_closed(tmp_path: Path, begun: bytes) -> None:
    with Node(tmp_path, config={"connections.max.idle.ms": "3000"}) as node:
        address = node.serve()
        with WireClient(address) as idle, WireClient(address) as busy:
            idle.send(begun)
            assert busy.ask(3, 9).brokers
            assert idle.closed()


def test_replies_use_tcp_nodelay_and_small_requests_stay_fast(node: Node) -> None:
    with WireClient(node.serve()) as client:
        client.ask(3, 9)
        times = []
        for _ in range(50):
            begun = time.monotonic()
            client.ask(3, 9)
            times.append(time.monotonic() - begun)
        assert median(times) < 0.02, "a delayed acknowledgement costs 40 ms"


def test_a_client_that_never_reads_harms_nobody(node: Node) -> None:
    address = node.serve()
    with WireClient(address) as deaf, WireClient(address) as other:
        other.produce("t", batch(bytes(1_000_000)))
        deaf.send(b"".join(fetch_request(12, fetch()) for _ in range(200)))
        for _ in range(20):
            [topic] = other.fetch(12, fetch()).topics
            assert values(topic.partitions[0].records) == [bytes(1_000_000)]


def test_two_listeners_are_served(node: Node) -> None:
    listeners = [Listener("INNER", "127.0.0.1", 0), Listener("OUTER", "127.0.0.1", 0)]
    server = SocketServer(listeners, node.ports, node.settings, node.loops)
    bound = server.bind()
    server.start()
    try:
        assert [listener.name for listener in bound] == ["INNER", "OUTER"]
        assert bound[0].port != bound[1].port
        for listener in bound:
            with WireClient((listener.host, listener.port)) as client:
                assert client.ask(18, 0).error_code == 0
    finally:
        server.stop()


def test_a_port_in_use_is_named(node: Node) -> None:
    host, port = node.serve()
    second = SocketServer([Listener("PLAINTEXT", host, port)], node.ports, node.settings, node.loops)
    with pytest.raises(OSError, match=f"PLAINTEXT cannot use {host}:{port}"):
        second.start()


def test_stop_ends_idle_waiting_and_half_sent_connections(node: Node) -> None:
    address = node.serve()
    server = node.server
    assert server is not None
    clients = [WireClient(address) for _ in range(3)]
    clients[1].send(fetch_request(12, fetch(max_wait_ms=60_000)))
    clients[2].send(b"\x00\x00\x01\x00half")
    wait_until(lambda: len(node.delayed) and server.connection_count == 3, WAIT_S, "all are connected")
    begun = time.monotonic()
    server.stop(timeout=60)
    assert time.monotonic() - begun < 30, "it waited for the time-out, or for the long poll"
    assert server.connection_count == 0
    for client in clients:
        with client:
            client.sock.settimeout(scaled(WAIT_S))
            while client.sock.recv(1 << 16):
                pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 1)


@pytest.mark.parametrize("reads", [True, False])
def test_client_that_takes_something_is_not_ended(node: Node, reads: bool) -> None:
    """Of a reply that is bytes alone, which the socket takes step by step."""
    with WireClient(node.serve()) as client:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.fetch(12, fetch())
        server, size, got = node.server, 32 << 20, 0
        assert server is not None
        assert server._loop is not None
        [connection] = server._clients
        connection.send_timeout_s = scaled(1.0)
        _Errand.run(server._loop, lambda: connection._put([bytes(size)]) or connection.wake(), WAIT_S)
        if not reads:
            wait_until(lambda: not server.connection_count, 4 * WAIT_S, "it is ended")
            return
        until_s, pause = time.monotonic() + scaled(4.0), threading.Event()
        while time.monotonic() < until_s:
            got += len(client.sock.recv(1 << 17))
            pause.wait(0.1)
        assert got < size
        assert server.connection_count, "it was ended"


def test_client_that_closes_its_side_gets_what_is_ready(node: Node) -> None:
    """As from Kafka: what it sent is done, and what is delayed then is dropped (docs/invariants.md)."""
    server_address = node.serve()
    with WireClient(server_address) as client:
        frames = [produce_request("t", batch(b"%d" % number), correlation_id=number) for number in range(20)]
        frames.append(fetch_request(12, fetch(offset=20, max_wait_ms=600_000), correlation_id=20))
        client.send(b"".join(frames))
        client.sock.shutdown(socket.SHUT_WR)
        assert [struct.unpack(">i", client.receive()[:4])[0] for _ in range(20)] == list(range(20))
        client.sock.settimeout(scaled(WAIT_S))
        assert not client.sock.recv(1), "the long poll has no answer, and is not waited for"
    assert node.partition("t").high_watermark == 20
    wait_until(lambda: not node.delayed.waiting, WAIT_S, "nobody waits")


@pytest.mark.parametrize("operation", ["pwritev", "fdatasync"])
def test_stop_leaks_nothing_of_a_request_that_hangs(tmp_path: Path, operation: str) -> None:
    """A write that hangs keeps the loop's own thread, a sync another one: either is done long after the stop."""
    disk = StuckDisk(RealFileSystem())
    with Node(tmp_path, fs=disk) as node:
        node.create_topic("t", config={"flush.messages": "1"} if operation == "fdatasync" else {})
        address = node.serve()
        server = node.server
        assert server is not None
        large = encode_batch([Record(os.urandom(800_000))])
        with WireClient(address, timeout_s=60) as client, WireClient(address, timeout_s=60) as waiting:
            waiting.send(fetch_request(12, fetch(offset=0, max_wait_ms=60_000)))
            disk.stick(operation)
            client.send(produce_request("t", large))
            assert disk.met.wait(WAIT_S)
            loop, clients = server._loop, list(server._clients)
            assert loop is not None
            server.stop(timeout=0.3)
            assert server.connection_count == 1, "the one that hangs"
            client.sock.settimeout(scaled(WAIT_S))
            assert not client.sock.recv(1), "the client does not wait for the disk"
            disk.gate.set()
            wait_until(lambda: not server.connection_count, WAIT_S, "it has ended")
        assert server._memory.used == 0
        assert not server._admission._by_ip
        assert not any(node.loops.failures().values()), node.loops.failures()
        wait_until(lambda: loop._epoll.closed, WAIT_S, "the loop has ended")
        assert [each.fileno() for each in clients] == [-1, -1]


def test_stop_wakes_the_loop(node: Node) -> None:
    listeners = [Listener(name, "127.0.0.1", 0) for name in ("INNER", "OUTER")]
    for _ in range(5):  # whether a thread misses that it is to end is a matter of luck
        server = SocketServer(listeners, node.ports, node.settings, node.loops)
        server.start()
        begun = time.monotonic()
        server.stop(timeout=60)
        assert time.monotonic() - begun < 30, "it waited for the time-out"


def test_counters_sum_over_open_and_closed_connections(node: Node) -> None:
    address = node.serve()
    server = node.server
    assert server is not None
    with WireClient(address) as client:
        client.produce("t", batch(b"x"))
    with WireClient(address) as client:
        client.produce("t", batch(b"y"))
        client.ask(3, 9)

        def counted() -> dict[int, int]:
            return {key: times.count for key, times in server.counters().requests.items()}

        wait_until(lambda: counted() == {0: 2, 3: 1}, WAIT_S, "the requests are counted", instead=counted)
        sums = server.counters()
        assert sums.messages_in == {"t": 2}
        assert sums.requests[0].total_ns > 0


def test_many_connections_at_once(node: Node) -> None:
    address = node.serve()
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            with WireClient(address) as client:
                for _ in range(5):
                    client.produce("t", batch(b"%d" % number), partition=number % 2)
        except BaseException as error:  # noqa: BLE001 (handed to the main thread)
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sum(node.partition("t", index).high_watermark for index in range(2)) == 250


def test_connections_have_no_threads(node: Node) -> None:
    address = node.serve()
    server = node.server
    assert server is not None
    clients = [WireClient(address) for _ in range(20)]
    before = threading.active_count()
    for client in clients:
        client.ask(18, 3, client_software_name="x", client_software_version="1")
        client.produce("t", batch(b"x"))
        client.fetch(12, fetch())
        client.send(fetch_request(12, fetch(partition=1, max_wait_ms=60_000)))
    wait_until(lambda: node.delayed.waiting == 20, WAIT_S, "all fetches wait")
    assert threading.active_count() <= before
    for client in clients:
        client.sock.close()
    wait_until(lambda: server.connection_count == 0, WAIT_S, "all have left")
    assert node.delayed.waiting == 0


def test_a_request_that_waits_for_the_store_keeps_nobody(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is answered by another thread, and what its client sent behind it after it."""
    free = threading.Event()
    create = node.create_topics

    def slow(*args: Any, **options: Any) -> Any:
        assert free.wait(scaled(60))
        return create(*args, **options)

    monkeypatch.setattr(node, "create_topics", slow)
    address = node.serve()
    new = {"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    with WireClient(address) as waiting, WireClient(address) as other:
        waiting.send(
            request(19, 5, topics=[new], timeout=timedelta(seconds=30), validate_only=False, correlation_id=1)
            + produce_request("t", batch(b"behind"), correlation_id=2)
        )
        for _ in range(100):
            assert other.produce("t", batch(b"x")).topics[0].partitions[0].error_code == 0
        free.set()
        assert [struct.unpack(">i", waiting.receive()[:4])[0] for _ in range(2)] == [1, 2]


def test_a_disk_that_hangs_keeps_those_that_write_to_it_and_no_other(tmp_path: Path) -> None:
    disk = StuckDisk(RealFileSystem())
    with Node(tmp_path, fs=disk) as node:
        node.create_topic("t", partitions=2)
        address = node.serve()
        with ExitStack() as stack:
            writers = [stack.enter_context(WireClient(address, timeout_s=60)) for _ in range(20)]
            reader = stack.enter_context(WireClient(address, timeout_s=60))
            writers[0].produce("t", batch(b"before"))
            disk.stick("pwritev")
            for number, writer in enumerate(writers):
                writer.send(produce_request("t", batch(b"%d" % number), partition=number % 2, correlation_id=number))
            assert disk.met.wait(WAIT_S)
            begun = time.monotonic()
            for _ in range(100):
                [topic] = reader.fetch(12, fetch()).topics
                assert values(topic.partitions[0].records) == [b"before"]
            assert time.monotonic() - begun < scaled(10), "each writer kept the others"
            disk.gate.set()
            for number, writer in enumerate(writers):
                reply = writer.receive()
                assert struct.unpack(">i", reply[:4])[0] == number
                assert parse_produce_response(9, reply)[1].topics[0].partitions[0].error_code == 0
        assert sum(node.partition("t", index).high_watermark for index in range(2)) == 21


def test_a_sync_that_hangs_keeps_nobody_else(tmp_path: Path) -> None:
    disk = StuckDisk(RealFileSystem())
    with Node(tmp_path, fs=disk) as node:
        node.create_topic("t")
        node.create_topic("synced", config={"flush.messages": "1"})
        address = node.serve()
        with WireClient(address, timeout_s=60) as waiting, WireClient(address) as other:
            disk.stick("fdatasync")
            waiting.send(produce_request("synced", batch(b"x"), correlation_id=1))
            assert disk.met.wait(WAIT_S)
            for _ in range(100):
                assert other.produce("t", batch(b"x")).topics[0].partitions[0].error_code == 0
            disk.gate.set()
            assert parse_produce_response(9, waiting.receive())[1].topics[0].partitions[0].error_code == 0
        assert node.server is not None
        assert not node.server._slow_apis.is_slow(0, time.monotonic()), "others' batches are appended in the loop"


def test_a_connection_that_ended_leaves_no_object_behind(node: Node) -> None:
    """Those of a storm would wait for the garbage collector, which comes seldom, with their buffers."""
    address = node.serve()
    server = node.server
    assert server is not None
    with WireClient(address) as client:
        client.produce("t", batch(b"x"))
        client.ask(3, 9)
        client.fetch(12, fetch())
        with server._lock:
            [connection] = map(weakref.ref, server._clients)
        gc.disable()
    try:
        wait_until(lambda: connection() is None, WAIT_S, "it is gone")
    finally:
        gc.enable()


def test_what_was_sent_before_a_client_left_counts(node: Node) -> None:
    """More than one turn's requests, none of which is answered."""
    with WireClient(node.serve()) as client:
        client.send(b"".join(produce_request("t", batch(b"%d" % number), acks=0) for number in range(3_000)))
    wait_until(lambda: node.partition("t").high_watermark == 3_000, WAIT_S, "all are in the log")


def test_a_client_that_asks_much_at_once_leaves_others_their_turns(node: Node) -> None:
    address = node.serve()
    count = 5_000
    with WireClient(address) as busy, WireClient(address) as other:
        ask = [request(18, 0, correlation_id=number) for number in range(count)]
        sender = threading.Thread(target=busy.send, args=(b"".join(ask),))
        sender.start()
        answered = 0
        for number in range(count):
            assert struct.unpack(">i", busy.receive()[:4])[0] == number
            if number % 500 == 0:
                answered += other.produce("t", batch(b"x")).topics[0].partitions[0].error_code == 0
        sender.join()
    assert answered == count // 500


def test_a_reply_does_not_wait_for_a_sync_behind_it(tmp_path: Path) -> None:
    disk = StuckDisk(RealFileSystem())
    with Node(tmp_path, fs=disk) as node:
        node.create_topic("replicated", replicas=(1, 2))
        node.create_topic("synced", config={"flush.messages": "1"})
        with WireClient(node.serve()) as client:
            disk.stick("fdatasync")
            client.send(
                produce_request("replicated", batch(b"x"), acks=-1, timeout_ms=60_000, correlation_id=1)
                + produce_request("synced", batch(b"x"), correlation_id=2)
            )
            wait_until(lambda: node.produces.waiting == 1, WAIT_S, "the first waits for the other replica")
            node.follower_has("replicated", 1)
            assert struct.unpack(">i", client.receive()[:4])[0] == 1
            assert disk.met.wait(WAIT_S)
            disk.gate.set()
            assert struct.unpack(">i", client.receive()[:4])[0] == 2


def test_a_request_that_finds_no_thread_ends_its_connection_alone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    address = node.serve()
    server = node.server
    assert server is not None
    monkeypatch.setattr(server._threads, "run", refuse)
    with WireClient(address) as unlucky, WireClient(address) as other:
        unlucky.send(request(3, 9, topics=None))
        assert unlucky.closed()
        assert other.produce("t", batch(b"x")).topics[0].partitions[0].error_code == 0
        assert server.connection_count == 1


def test_a_storm_is_taken_in_step_by_step_and_nobody_is_lost(node: Node) -> None:
    address = node.serve()
    clients = [WireClient(address) for _ in range(3 * BURST)]
    begun = time.monotonic()
    for client in clients:
        client.send(request(18, 3, client_software_name="x", client_software_version="1"))
    for client in clients:
        assert client.receive()
        client.sock.close()
    assert time.monotonic() - begun < scaled(10)
