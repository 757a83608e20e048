"""One request to a Node, and its answer: no socket, and nothing that waits."""

from __future__ import annotations

from typing import Any

from kit.node import Node
from kit.wire import request
from raylog.broker.handlers import TABLE
from raylog.broker.handlers.context import Connection
from raylog.protocol.wire.messages import decode_response

__all__ = ["KEYS", "ask"]

KEYS = {row.name: row.key for row in TABLE}


def ask(node: Node, api: str, version: int, *, listener: str = "PLAINTEXT", **values: Any) -> Any:
    """The answer to a request of these fields, which comes at once."""
    reply = node.answer(request(KEYS[api], version, **values)[4:], Connection(listener))
    assert isinstance(reply, bytes)
    correlation_id, response = decode_response(KEYS[api], version, reply)
    assert correlation_id == 7
    return response
