"""Connections, against a socket that is no broker."""

from __future__ import annotations

import select
import socket
from contextlib import ExitStack

import pytest

from kit.waiting import wait_until
from raylog.client.config.client import ADMIN_SETTINGS, client_settings
from raylog.client.network.connection import Address
from raylog.client.network.pool import Pool

pytestmark = pytest.mark.system

PATIENCE_S = 10.0


def test_no_request_is_sent_before_the_broker_has_said_what_it_speaks() -> None:
    """As when a consumer is closed while it connects again to a broker that keeps a fetch session of it."""
    with ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = Address(*silent.getsockname())
        pool = Pool(client_settings(ADMIN_SETTINGS, f"127.0.0.1:{address.port}", {}))
        stack.callback(pool.close)
        peers: list[socket.socket] = []

        def asked() -> bool:
            pool.ready(address)
            pool.poll(10)
            if not peers and select.select([silent], [], [], 0)[0]:
                peers.append(stack.enter_context(silent.accept()[0]))
            return bool(peers) and bool(select.select(peers, [], [], 0)[0])

        wait_until(asked, PATIENCE_S, "the first request arrives")
        assert not pool.ready(address)
        assert pool.capacity(address, 5) == 0
