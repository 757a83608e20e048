"""Ctrl-C may come at any line: a consumer that is interrupted while it talks to brokers goes on reading."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from kit.cluster import InProcessCluster
from kit.waiting import wait_until
from raylog.client import connection, epoch_checks, fetch_session, fetcher, network, offset_searches, pool
from raylog.client.consumer import Consumer
from raylog.client.producer import Producer

FILES = {each.__file__ for each in (connection, epoch_checks, fetch_session, fetcher, network, offset_searches, pool)}


class Interrupt:
    """Raises KeyboardInterrupt at the nth line that these files run in this thread."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in FILES or self.left < 0:
            return None
        if event == "line":
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        return self._trace


def test_interrupt_in_any_line_of_an_exchange_loses_nothing(tmp_path: Path) -> None:
    settings = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 50, "retry_backoff_ms": 5}
    with InProcessCluster(tmp_path) as cluster:
        cluster.create_topic("t", partitions=1)
        servers = cluster.bootstrap_servers
        with Producer(servers) as producer, Consumer(servers, ["t"], **settings) as consumer:
            found: list[int] = []

            def read(timeout_ms: float = 500) -> None:
                found.extend(record.offset for records in consumer.poll(timeout_ms).values() for record in records)

            interrupts, sent = 0, 0
            while True:
                producer.send("t", b"v")
                producer.flush()
                sent += 1
                try:
                    with Interrupt(interrupts):
                        read(5_000)
                    break
                except KeyboardInterrupt:
                    interrupts += 1
                wait_until(lambda: read() or len(found) >= sent, 20, f"record {sent} came")  # noqa: B023
                assert found == list(range(sent)), f"interrupted at line {interrupts - 1}"
    assert found == list(range(sent))
    assert interrupts > 100
