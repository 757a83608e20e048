"""What kazoo raises, in the words of the MetadataStore contract."""

from __future__ import annotations

from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError

from raylog.coordination.store.port import (
    BadVersion,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    StoreError,
    StoreUnauthorized,
    StoreUnavailable,
)

__all__ = ["translated"]

_ERRORS: tuple[tuple[type[Exception], type[StoreError], str], ...] = (
    (NodeExistsError, NodeExists, "exists already"),
    (NoAuthError, StoreUnauthorized, "is closed to these credentials: give those of zookeeper.auth"),
    (NoNodeError, NoNode, "does not exist, or its parent does not"),
    (BadVersionError, BadVersion, "is at another version than was named"),
    (NotEmptyError, NotEmpty, "has children"),
    (NoChildrenForEphemeralsError, NoChildrenForEphemerals, "cannot have children: its parent is ephemeral"),
    (SessionExpiredError, SessionExpired, "was not answered before the session expired"),
    (ConnectionLoss, StoreUnavailable, "was not answered: the connection to ZooKeeper was lost"),
    (ConnectionClosedError, StoreUnavailable, "was not answered: the connection to ZooKeeper is closed"),
    (KazooTimeoutError, StoreUnavailable, "was not answered by ZooKeeper in time"),
)


def translated(error: Exception, path: str, index: int = 0) -> StoreError:
    """What a request about ``path``, the operation ``index`` of its multi, raises for kazoo's ``error``."""
    for kind, translation, phrase in _ERRORS:
        if isinstance(error, kind):
            return translation(f"{path} {phrase}", path, index)
    return StoreError(f"{path}: ZooKeeper answered {error!r}", path, index)
