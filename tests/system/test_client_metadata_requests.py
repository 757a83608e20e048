"""Which topics clients ask about, and how often, while time passes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.machine import scaled, scaled_ms
from kit.proxied import proxied
from kit.proxy import FrameProxy
from kit.waiting import wait_until
from raylog.client import Admin, Consumer, Producer
from raylog.protocol.wire.messages import decode_request, parse_request_header

pytestmark = pytest.mark.system

METADATA = 3
AGE_MS = 100
SEEN = "seen"
"""The client id of those that are looked at."""


class Asked:
    """Of each Metadata request of the client that is looked at: its topics, and whether brokers may create."""

    def __init__(self, proxy: FrameProxy) -> None:
        self.lines: list[tuple[set[str], bool]] = []
        proxy.edit_request = self._see
        self.servers = f"127.0.0.1:{proxy.port}"

    def _see(self, frame: bytes) -> bytes:
        header = parse_request_header(frame)
        if header.api_key == METADATA and header.client_id == SEEN:
            request: Any = decode_request(METADATA, header.version, frame[header.body_pos :])
            names = {topic.name for topic in request.topics or ()}
            self.lines.append((names, request.allow_auto_topic_creation))
        return frame


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    with proxied(tmp_path, {"auto.create.topics.enable": "true"}) as (_, proxy, servers):
        with Admin(servers) as admin:
            admin.create_topic("gone", partitions=1)
        yield Asked(proxy)


@pytest.mark.parametrize("creates", [False, True])
def test_a_consumer_asks_no_more_for_what_it_reads_no_more(asked: Asked, creates: bool) -> None:
    with (
        Consumer(
            asked.servers, client_id=SEEN, metadata_max_age_ms=AGE_MS, allow_auto_create_topics=creates
        ) as consumer,
        Admin(asked.servers) as admin,
    ):

        def rounds(count: int) -> list[tuple[set[str], bool]]:
            before = len(asked.lines)
            wait_until(lambda: consumer.poll(10) is not None and len(asked.lines) >= before + count, 20, "requests")
            return asked.lines[before:]

        consumer.assign([("t", 0), ("gone", 0)])
        assert {"t", "gone"} in [names for names, _ in rounds(2)]
        consumer.assign([("t", 0)])
        consumer.poll(10)
        rounds(1)  # one may have been under way
        assert rounds(3) == [({"t"}, False)] * 3
        admin.delete_topics(["gone"])
        assert "gone" not in [topic.name for topic in admin.list_topics()]
        assert consumer.partitions_for("t") == (0, 1)
        asked.lines.clear()
        assert rounds(3) == [({"t"}, False)] * 3
        consumer.unsubscribe()
        rounds(1)
        assert rounds(3) == [(set(), False)] * 3
        assert "gone" not in [topic.name for topic in admin.list_topics()], "it was made anew"


def test_a_producer_asks_no_more_for_what_it_sends_to_no_more(asked: Asked) -> None:
    config = {
        "metadata_max_age_ms": AGE_MS,
        "metadata_max_idle_ms": 5_000,
        "delivery_timeout_ms": scaled_ms(500),
        "client_id": SEEN,
    }
    with (
        Producer(asked.servers, linger_ms=0, request_timeout_ms=scaled_ms(400), **config) as producer,
        Admin(asked.servers) as admin,
    ):
        producer.send("gone", b"1").result(scaled(20))
        producer.send("t", b"1").result(scaled(20))
        wait_until(lambda: ({"t", "gone"}, False) in asked.lines, 20, "both are asked for")
        admin.delete_topics(["gone"])
        wait_until(lambda: asked.lines[-2:] == [({"t"}, False)] * 2, 20, "only one is")
        assert [names for names, creates in asked.lines if creates] == [{"gone"}, {"t"}]
        assert "gone" not in [topic.name for topic in admin.list_topics()], "it was made anew"
        wait_until(lambda: asked.lines[-2:] == [(set(), False)] * 2, 20, "metadata.max.idle.ms is over")
