"""The benchmark's load: one connection each, no client library, every answer checked.

All functions return what was measured and raise AssertionError when the work was not done: counts and offsets are
checked while the clock runs, checksums in a pass of their own.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from dataclasses import dataclass

from raylog.protocol.records import Record, batch_headers, decode_batches, encode_batch, validate_batch
from raylog.protocol.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    encode_fetch_request,
    parse_fetch_response,
)
from raylog.protocol.wire.primitives import ZERO_UUID
from raylog.protocol.wire.produce import (
    PartitionRecords,
    ProduceRequest,
    TopicRecords,
    encode_produce_request,
    parse_produce_response,
)

Address = tuple[str, int]

PRODUCE_VERSION = 9
FETCH_VERSION = 12
IN_FLIGHT = 5
"""Requests on the way at once: the default of Kafka's max.in.flight.requests.per.connection."""

FETCHES_IN_FLIGHT = 2
FETCH_BYTES = 1024 * 1024
MARK = 0x0123456789ABCDEF
"""An offset that can be found again in a request."""

_LENGTH = struct.Struct(">i")


def connect(address: Address) -> socket.socket:
    sock = socket.create_connection(address, 30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(True)
    return sock


def receive(sock: socket.socket, buffer: memoryview) -> memoryview:
    """One response without its length."""
    got = 0
    size = _LENGTH.size
    while got < size:
        count = sock.recv_into(buffer[got:])
        assert count, "the broker closed the connection"
        got += count
        if got >= _LENGTH.size and size == _LENGTH.size:
            size = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
    assert got == size, "more came than was asked for"
    return buffer[_LENGTH.size : size]


# --- the machine's limits ---------------------------------------------------------------------------------------


def loopback_send(address: Address, chunk: bytes, total: int) -> float:
    """Bytes per second of ``total`` bytes sent in pieces to a reader that drops them."""
    with connect(address) as sock:
        sock.sendall(total.to_bytes(8, "big"))
        begun = time.perf_counter()
        for _ in range(total // len(chunk)):
            sock.sendall(chunk)
        assert sock.recv(1) == b"!"
        return total / (time.perf_counter() - begun)


def raw_sendfile(address: Address, total: int) -> float:
    """Bytes per second of a file of ``total`` bytes that another process sends from the page cache."""
    buffer = memoryview(bytearray(FETCH_BYTES + 4096))
    with connect(address) as sock:
        begun = time.perf_counter()
        sock.sendall(b"!")
        left = total
        while left:
            count = sock.recv_into(buffer)
            assert count, "the file ended early"
            left -= count
        return total / (time.perf_counter() - begun)


def ping_pong(address: Address, count: int, size: int = 100) -> list[float]:
    """Seconds from sending a small message to having it back."""
    times: list[float] = []
    message, buffer = bytes(size), memoryview(bytearray(4096))
    with connect(address) as sock:
        for _ in range(count):
            begun = time.perf_counter()
            sock.send(message)
            assert sock.recv_into(buffer) == size
            times.append(time.perf_counter() - begun)
    return times


# --- the broker -------------------------------------------------------------------------------------------------


def sized_batch(size: int, record_bytes: int = 100) -> tuple[bytes, int]:
    """A batch of exactly ``size`` bytes, and how many records are in it; the last value fills it up."""
    count = size // (record_bytes + 10)
    while True:
        records = [Record(bytes(record_bytes))] * (count - 1)
        spare = size - len(encode_batch([*records, Record(b"")]))
        for padding in range(spare, max(spare - 16, 0), -1):
            batch = encode_batch([*records, Record(bytes(padding))])
            if len(batch) == size:
                return batch, count
        count -= 1


def produce_frame(topic: str, batch: bytes) -> bytes:
    request = ProduceRequest(None, 1, 30_000, [TopicRecords(topic, ZERO_UUID, [PartitionRecords(0, batch)])])
    return b"".join(encode_produce_request(PRODUCE_VERSION, request, correlation_id=1, client_id="bench"))


def fetch_frame(topic: str, offset: int, *, max_wait_ms: int = 500, max_bytes: int = FETCH_BYTES) -> bytes:
    topics = [FetchTopic(topic, ZERO_UUID, [FetchPartition(0, offset, max_bytes)])]
    request = FetchRequest(max_wait_ms, 1, topics, max_bytes)
    return encode_fetch_request(FETCH_VERSION, request, correlation_id=1, client_id="bench")


def produced_offset(frame: memoryview) -> int:
    _, response = parse_produce_response(PRODUCE_VERSION, frame)
    part = response.topics[0].partitions[0]
    assert part.error_code == 0, part
    return part.base_offset


def fetched(frame: memoryview) -> tuple[int, memoryview]:
    """The high watermark and the record data."""
    _, response = parse_fetch_response(FETCH_VERSION, frame)
    part = response.topics[0].partitions[0]
    assert part.error_code == 0, part
    return part.high_watermark, memoryview(part.records or b"")


class Replies:
    """The replies to Produce requests as they come in; they are parsed when asked for."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = memoryview(bytearray(1 << 16))
        self._data = bytearray()
        self._at = 0
        self.count = 0

    def take(self) -> None:
        """Wait for at least one byte and count the whole replies."""
        got = self._sock.recv_into(self._buffer)
        assert got, "the broker closed the connection"
        self._data += self._buffer[:got]
        while len(self._data) >= self._at + 4:
            stop = self._at + 4 + _LENGTH.unpack_from(self._data, self._at)[0]
            if stop > len(self._data):
                break
            self.count += 1
            self._at = stop

    def offsets(self) -> list[int]:
        """The base offset in every whole reply."""
        offsets, at = [], 0
        with memoryview(self._data) as data:
            while at < self._at:
                stop = at + 4 + _LENGTH.unpack_from(data, at)[0]
                offsets.append(produced_offset(data[at + 4 : stop]))
                at = stop
        return offsets


def produce(address: Address, topic: str, batch: bytes, records: int, total: int) -> float:
    """Bytes per second of ``total`` bytes of equal batches, acks=1, up to IN_FLIGHT unanswered at a time."""
    frame, batches = produce_frame(topic, batch), total // len(batch)
    with connect(address) as sock:
        replies = Replies(sock)
        begun = time.perf_counter()
        for sent in range(batches):
            while sent - replies.count >= IN_FLIGHT:
                replies.take()
            sock.sendall(frame)
        while replies.count < batches:
            replies.take()
        spent = time.perf_counter() - begun
    offsets = replies.offsets()
    assert offsets == list(range(offsets[0], offsets[0] + batches * records, records)), "offsets have gaps"
    return batches * len(batch) / spent


def fetch(address: Address, topic: str, batch: bytes, records: int, total: int) -> float:
    """Bytes per second of reading ``total`` bytes of equal batches, 1 MB a request, FETCHES_IN_FLIGHT at a time.

    The batches' equal size makes it known where a request's answer will end, so that the next one need not wait for
    it. A response's length tells how many batches are in it; :func:`verify` looks at each of them.
    """
    request, step = Request(topic), FETCH_BYTES // len(batch)
    buffer = memoryview(bytearray(2 * FETCH_BYTES))
    wanted = total // len(batch)
    assert FETCH_BYTES % len(batch) == 0, "batches must fill a response"
    assert wanted % step == 0, "responses must fill the total"
    with connect(address) as sock:
        begun = time.perf_counter()
        asked = received = 0
        while received < wanted:
            while asked < wanted and asked - received < FETCHES_IN_FLIGHT * step:
                sock.send(request.at(asked * records))
                asked += step
            count = receive_one(sock, buffer) // len(batch)
            assert count == step, f"{count} batches came instead of {step}"
            received += count
        return total / (time.perf_counter() - begun)


def receive_one(sock: socket.socket, buffer: memoryview) -> int:
    """Read one response and nothing of the next; its length."""
    assert sock.recv_into(buffer, 4, socket.MSG_WAITALL) == 4, "the broker closed the connection"
    length: int = _LENGTH.unpack_from(buffer)[0]
    left = length
    while left:
        count = sock.recv_into(buffer, left)
        assert count, "the broker closed the connection"
        left -= count
    return length


class Request:
    """A Fetch request that is only written once; then its offset is changed in place."""

    def __init__(self, topic: str, *, max_wait_ms: int = 500) -> None:
        self._frame = bytearray(fetch_frame(topic, MARK, max_wait_ms=max_wait_ms))
        self._at = self._frame.index(MARK.to_bytes(8, "big"))

    def at(self, offset: int) -> bytearray:
        self._frame[self._at : self._at + 8] = offset.to_bytes(8, "big")
        return self._frame


def verify(address: Address, topic: str, batch: bytes, records: int) -> int:
    """Read the topic to its end and check every batch's checksum, header and offset; the number of records."""
    offset, end = 0, 1
    buffer = memoryview(bytearray(2 * FETCH_BYTES))
    with connect(address) as sock:
        while offset < end:
            sock.sendall(fetch_frame(topic, offset))
            end, data = fetched(receive(sock, buffer))
            for position, header in batch_headers(data):
                validate_batch(data, position)
                assert (header.base_offset, header.size) == (offset, len(batch))
                assert data[position + 61 : position + header.size] == batch[61:]
                offset = header.next_offset
    assert offset % records == 0
    return offset


@dataclass
class EndToEnd:
    """Seconds from sending each record to holding it, and the rate that was really sent."""

    times: list[float]
    rate: float


def end_to_end(address: Address, topic: str, rate: float, count: int) -> EndToEnd:
    """One record per request, ``rate`` a second, read by a second connection's long polls, all in one thread.

    The load must not be what is measured, so while the clock runs it only looks at lengths: all batches are equal,
    so a response's length tells how many are in it. Everything is parsed and checked afterwards. A slot that is missed
    is sent late, not left out: its record counts from when it was sent.
    """
    batch = encode_batch([Record(b"x" * 100)])
    frame, request = produce_frame(topic, batch), Request(topic)
    sent: list[float] = []
    arrived: list[tuple[float, bytes]] = []
    received = 0
    buffer = memoryview(bytearray(1 << 20))
    with connect(address) as producer, connect(address) as consumer:
        replies = Replies(producer)
        consumer.send(request.at(0))
        begun = time.perf_counter()
        while received < count or replies.count < count:
            now = time.perf_counter()
            due = begun + len(sent) / rate
            if len(sent) < count and now >= due:
                producer.send(frame)
                sent.append(now)
                continue
            wait = due - now if len(sent) < count else 5.0
            readable, _, _ = select.select([producer, consumer], [], [], wait)
            if consumer in readable:
                response = receive(consumer, buffer)
                arrived.append((time.perf_counter(), bytes(response)))
                received += len(response) // len(batch)
                consumer.send(request.at(received))
            if producer in readable:
                replies.take()
            assert readable or len(sent) < count, f"{count - received} records are missing"
    assert replies.offsets() == list(range(count)), "offsets have gaps"
    times: list[float] = []
    for when, frame_received in arrived:
        _, data = fetched(memoryview(frame_received))
        for record in decode_batches(data):
            assert record.offset == len(times), "a record is missing or there twice"
            times.append(when - sent[record.offset])
    return EndToEnd(times, (count - 1) / (sent[-1] - sent[0]))
