"""What the store reaches into of kazoo, beside its public API: fails when another version of kazoo has it otherwise."""

from __future__ import annotations

import inspect

from kazoo.client import KazooClient
from kazoo.protocol.connection import ConnectionHandler


def test_kazoo_has_what_store_and_restart_use() -> None:
    client = KazooClient()
    assert {"_stopped", "_connection", "handler"} <= vars(client).keys()
    assert all(callable(getattr(client, name)) for name in ("_call", "_safe_close", "start_async", "add_listener"))
    assert {"connection_stopped", "_socket", "_connection_routine"} <= vars(client._connection).keys()
    assert list(inspect.signature(client._call).parameters) == ["request", "async_object"]
    client.close()


def test_kazoo_reads_for_two_thirds_of_granted_timeout() -> None:
    source = inspect.getsource(ConnectionHandler._connect)
    assert "read_timeout = negotiated_session_timeout * 2.0 / 3.0" in source
    assert source.rstrip().endswith("return read_timeout, connect_timeout")
