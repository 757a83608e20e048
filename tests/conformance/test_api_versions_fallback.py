"""A client that asks for an ApiVersions newer than ours is told our range in a form it can read, and goes on (KIP-511).

No client here asks for more than version 4 yet: so a proxy raises what they ask for, as their next releases will.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kit.clients import PYTHON_CLIENTS, Client, Kcat
from kit.cluster import InProcessCluster
from kit.proxy import FrameProxy

pytestmark = pytest.mark.conformance

API_VERSIONS = 18
NEWER = 99
NAMES = [client.name for client in (*PYTHON_CLIENTS, Kcat()) if client.name != "raylog"]  # ours asks for version 3
ROWS = [(b"key", b"value", []), (None, b"another", [])]


class Raise:
    """Makes every second ApiVersions request a newer one; :attr:`asked` has the versions that were asked for, in order.

    Every second: who was told our range may ask again for a version in it, and must then get its answer.
    """

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, frame: bytes) -> bytes:
        if int.from_bytes(frame[:2], "big") != API_VERSIONS:
            return frame
        self.asked.append(int.from_bytes(frame[2:4], "big"))
        raised = self.asked[-1] > 0 and self.asked.count(self.asked[-1]) % 2
        return frame[:2] + NEWER.to_bytes(2, "big") + frame[4:] if raised else frame


@pytest.fixture
def raised(brokers: InProcessCluster) -> Iterator[tuple[Raise, str]]:
    """A way to one broker that raises versions, and what was asked on it; the other brokers are reached directly."""
    host, _, port = brokers.bootstrap_servers.split(",")[0].rpartition(":")
    with FrameProxy() as proxy:
        proxy.target = host, int(port)
        proxy.edit_request = edit = Raise()
        yield edit, f"127.0.0.1:{proxy.port}"


@pytest.mark.parametrize("writer_name", NAMES)
def test_a_newer_client_finds_our_versions(
    brokers: InProcessCluster, writer: Client, raised: tuple[Raise, str]
) -> None:
    edit, servers = raised
    topic = f"newer-{writer.name}"
    brokers.create_topic(topic)
    rows = writer.writable(ROWS)
    writer.write(servers, topic, 0, rows, "none")
    assert writer.read(servers, topic, 0, len(rows)) == [writer.readable(row) for row in rows]
    assert edit.asked, "the client did not ask for versions through the proxy"
    print(f"{writer.name} asked for ApiVersions {edit.asked}")
