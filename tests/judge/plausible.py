"""Fields in which no two brokers are alike: what each must be all the same. It is told only where it is not so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from judge.steps import Tree

__all__ = ["NOWHERE", "Asked", "is_plausible"]

AN_HOUR_MS = 3_600_000
NOBODY = -1
"""The node in the place of one that is not known."""
SUCCESS = "NONE"
"""What Kafka's FindCoordinator says beside no error."""


class Asked(NamedTuple):
    """Where, when and what: ``address`` is the broker's, ``tree`` the request's."""

    address: tuple[str, int]
    now_ms: int
    tree: Tree

    def is_now(self, time_ms: int) -> bool:
        """Whether it is about the time at which the broker was asked."""
        return abs(time_ms - self.now_ms) < AN_HOUR_MS


NOWHERE = Asked(("", NOBODY), 0, {})


def is_plausible(field: str, owner: Any, asked: Asked) -> bool:
    """Whether the field of the structure ``owner`` is one that is not compared, and as it must be."""
    rule = _RULES.get(field)
    return rule is not None and rule(getattr(owner, field), owner, asked)


def _has_address(owner: Any, asked: Asked) -> tuple[str, int]:
    """The only broker's, which is asked; none of a node that is not known."""
    node = owner.node_id if hasattr(owner, "node_id") else owner.broker_id
    return ("", NOBODY) if node == NOBODY else asked.address


def _failed(owner: Any) -> bool:
    code = getattr(owner, "error_code", None)
    return code is None or bool(code.value)


_RULES: Mapping[str, Callable[[Any, Any, Asked], bool]] = {
    "throttle_time": lambda value, owner, asked: value == timedelta(),
    "error_message": lambda value, owner, asked: _failed(owner) or value in (None, "", SUCCESS),
    "cluster_id": lambda value, owner, asked: bool(value) == bool(owner.brokers),
    "host": lambda value, owner, asked: value == _has_address(owner, asked)[0],
    "port": lambda value, owner, asked: value == _has_address(owner, asked)[1],
    "client_host": lambda value, owner, asked: value == f"/{asked.address[0]}",
    "log_dir": lambda value, owner, asked: _failed(owner) or value.startswith("/"),
    "documentation": lambda value, owner, asked: bool(value) == asked.tree.get("include_documentation", False),
    "total_bytes": lambda value, owner, asked: value > 0,
    "usable_bytes": lambda value, owner, asked: value > 0,
    "last_timestamp": lambda value, owner, asked: asked.is_now(value),
    "finalized_features_epoch": lambda value, owner, asked: True,
}
