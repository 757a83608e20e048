"""The benchmark's load of many: consumers that tail one partition, partitions that nothing happens in."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import load

from raylog.protocol.records import Record, encode_batch
from raylog.protocol.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    encode_fetch_request,
    parse_fetch_response,
)
from raylog.protocol.wire.primitives import ZERO_UUID

TAIL_WAIT_S = 30.0


@dataclass
class Tailing:
    """Of each record: seconds from sending it until the first, the middle and the last consumer have it."""

    first: list[float]
    middle: list[float]
    last: list[float]


def tailing(address: load.Address, topic: str, consumers: int, records: int) -> Tailing:
    """One record after the other to ``consumers`` long polls of one partition; the next once all have it."""
    frame = load.produce_frame(topic, encode_batch([Record(bytes(100))]))
    request = load.Request(topic, max_wait_ms=int(TAIL_WAIT_S * 1000))
    buffer = memoryview(bytearray(1 << 16))
    found = Tailing([], [], [])
    with ExitStack() as stack:
        producer = stack.enter_context(load.connect(address))
        tails = [stack.enter_context(load.connect(address)) for _ in range(consumers)]
        poll = select.epoll()
        stack.callback(poll.close)
        by_number: dict[int, socket.socket] = {tail.fileno(): tail for tail in tails}
        for number in by_number:
            poll.register(number, select.EPOLLIN)
        for offset in range(records):
            for tail in tails:
                tail.send(request.at(offset))
            time.sleep(0.02)  # until all wait: what is measured is waking them
            begun = time.perf_counter()
            producer.send(frame)
            times: list[float] = []
            while len(times) < consumers:
                ready = poll.poll(TAIL_WAIT_S)
                assert ready, f"{consumers - len(times)} consumers did not get record {offset}"
                for number, _ in ready:
                    end, data = load.fetched(load.receive(by_number[number], buffer))
                    assert end == offset + 1, f"the high watermark is {end} after record {offset}"
                    assert len(data)
                    times.append(time.perf_counter() - begun)
            assert load.produced_offset(load.receive(producer, buffer)) == offset
            found.first.append(times[0])
            found.middle.append(times[consumers // 2])
            found.last.append(times[-1])
    return found


def idle_fetches(address: load.Address, topics: Sequence[str], partitions: int, rounds: int, *, session: bool) -> float:
    """Seconds per fetch that finds nothing in ``partitions`` of each topic: each a full one, or all in one session."""
    buffer = memoryview(bytearray(1 << 20))
    parts = [FetchPartition(index, 0, load.FETCH_BYTES) for index in range(partitions)]
    whole = [FetchTopic(topic, ZERO_UUID, parts) for topic in topics]
    count = len(topics) * partitions
    with load.connect(address) as sock:

        def ask(request: FetchRequest) -> tuple[int, int]:
            sock.sendall(encode_fetch_request(load.FETCH_VERSION, request, correlation_id=1, client_id="bench"))
            _, response = parse_fetch_response(load.FETCH_VERSION, load.receive(sock, buffer))
            assert response.error_code == 0
            return response.session_id, sum(len(each.partitions) for each in response.topics)

        if not session:
            begun = time.perf_counter()
            for _ in range(rounds):
                assert ask(FetchRequest(0, 1, whole)) == (0, count)
            return (time.perf_counter() - begun) / rounds
        session_id, told = ask(FetchRequest(0, 1, whole, session_epoch=0))
        assert session_id, "the broker made no session"
        assert told == count
        begun = time.perf_counter()
        for epoch in range(1, rounds + 1):
            assert ask(FetchRequest(0, 1, [], session_id=session_id, session_epoch=epoch)) == (session_id, 0)
        return (time.perf_counter() - begun) / rounds
