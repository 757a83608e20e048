"""The ACL that asks ZooKeeper's clients for credentials (``credentials``), and closing what was there before it.

A store that has credentials makes every node for them alone. Nodes that are there already are closed by
:func:`close_tree`, as Kafka's zookeeper-security-migration does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.serialization import Auth
from kazoo.security import ACL, make_digest_acl

from raylog.coordination.metadata import paths
from raylog.coordination.store.port import StoreError, StoreUnauthorized, StoreUnavailable
from raylog.coordination.zookeeper.credentials import digest_of

__all__ = ["acl_of", "client_options", "close_tree"]

_SERVERS_OWN = "/zookeeper"
_PIPELINED = 500


class _WithoutPasswords(logging.Filter):
    """Lets no request pass that presents credentials: kazoo logs all of its requests at DEBUG."""

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args if isinstance(record.args, tuple) else ()
        return not any(isinstance(argument, Auth) for argument in arguments)


logging.getLogger("kazoo.client").addFilter(_WithoutPasswords())


def acl_of(credentials: str) -> list[ACL]:
    """Everything is allowed to who presents ``credentials``, and nothing to anybody else."""
    user, _, password = credentials.partition(":")
    return [make_digest_acl(user, password, all=True)]


def client_options(credentials: str) -> dict[str, Any]:
    """What kazoo's client takes to present ``credentials``, and to make all nodes for them; nothing for ""."""
    return {"auth_data": [("digest", credentials)], "default_acl": acl_of(credentials)} if credentials else {}


def close_tree(connect: str, credentials: str, *, whole: bool, timeout_s: float = 15.0) -> None:
    """Let only ``credentials`` at the znodes, also at those that were made before, unless that was done already.

    ``whole``: all of the server's nodes are ours, as those of an embedded one; else only what is below the chroot of
    ``connect``, or without one the nodes that Kafka and raylog name. A parent is closed before its children are listed:
    so nobody adds an open one meanwhile. Cut short, it is done again. Raises StoreUnauthorized, StoreUnavailable.
    """
    hosts, slash, chroot = connect.partition("/")
    root = (slash + chroot).rstrip("/")
    acl = acl_of(credentials)
    client = KazooClient(hosts, timeout=timeout_s, **client_options(credentials))
    done, owner = f"{root}{paths.ACL_OWNER}", digest_of(credentials).encode()
    try:
        client.start(timeout=timeout_s)
        if client.exists(done) and client.get(done)[0] == owner:
            return
        client.ensure_path(root or "/")
        tops = sorted({f"/{path.split('/')[1]}" for path in (*paths.BASE_PATHS, *paths.BASE_VALUES)})
        level = ["/"] if whole else [root] if root else tops
        while level:
            _each(level, lambda path: client.set_acls_async(path, acl))
            children = _each(level, client.get_children_async)
            level = [f"{path.rstrip('/')}/{name}" for path, names in children for name in names]
        client.ensure_path(done)
        client.set(done, owner)
    except NoAuthError as error:
        raise StoreUnauthorized(
            f"ZooKeeper at {connect} refuses the credentials: its nodes belong to others", connect
        ) from error
    except KazooTimeoutError as error:
        raise StoreUnavailable(f"ZooKeeper at {connect} does not answer: check the address and that it runs") from error
    except KazooException as error:
        raise StoreError(f"the znodes at {connect} cannot be closed: {error!r}") from error
    finally:
        client.stop()
        client.close()


def _each(paths_: Sequence[str], ask: Callable[[str], Any]) -> Iterable[tuple[str, Any]]:
    """What is answered for each, without those that are gone; of the server's own nodes, without the closed ones."""
    answers = []
    for start in range(0, len(paths_), _PIPELINED):
        batch = paths_[start : start + _PIPELINED]
        for path, result in zip(batch, [ask(path) for path in batch], strict=True):
            try:
                answers.append((path, result.get()))
            except NoNodeError:
                continue
            except NoAuthError:
                if not path.startswith(_SERVERS_OWN):
                    raise
    return answers
