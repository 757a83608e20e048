"""What in the metadata store cannot be understood: it is skipped, told once, and stops nothing else.

A foreign tool, an old version or a slip of the hand may leave any node anywhere. The rule for all who read names and
values: what raises CorruptMetadata harms what it is about, one topic, partition, broker, member or group, and nobody
else. ``with skipping():`` around one such thing is how a reader keeps it.

Each is logged once, with its path and what to do, and counted (the metric raylog_metadata_unreadable_total). The log is
the process's, and so is this list; ``collecting`` gives the calling thread one of its own (`raylog doctor`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from raylog.coordination.store.node_json import CorruptMetadata
from raylog.coordination.store.port import NoChildrenForEphemerals, StoreUnauthorized
from raylog.protocol.logs import Logger

__all__ = ["UnreadableNodes", "advice_for", "collecting", "for_good", "readable", "skipping", "tell", "told_count"]

log = Logger(__name__)

T = TypeVar("T")

MOST = 1_000
"""More are not told."""

_ADVICE_FOR = (
    ("as no topic can be", "delete the node: no topic can have this name"),
    ("as no group can be", "delete the node: no group can have this name"),
    ("as no member can be", "delete the node: no member can have this name"),
    ("a copy of its node", "`raylog topics delete` deletes the copy alone"),
    ("another program deleted it", "find that program; the state is written anew, in the next leader epoch"),
    ("is persistent, so it", "delete the node: a registration ends with its session"),
    ("kept by a session", "end the program that keeps it, or delete the node"),
    ("names broker", "nothing: that broker replaces the claim when the group is asked for"),
)
"""By what is wrong; else by the path."""
_ADVICE = (
    ("/brokers/ids", "see which program registered it; a broker's node is a number, and ends with its session"),
    ("/raylog/brokers", "restart that broker: it writes its node anew"),
    ("/raylog/topic_ids", "delete the node: it is no topic's id"),
    ("/raylog/empty_groups", "delete the node: the time since when the group is empty begins anew"),
    ("/brokers/topics", "write the value back; or, where no such topic is wanted, `raylog topics delete`"),
    ("/admin/delete_topics", "delete the node: no topic can have this name"),
    ("/config/changes", "set the config again; the notice is removed"),
    (
        "/config",
        "its overrides count as they were known before: set them again with `raylog configs`, or delete the node",
    ),
    ("/consumers", "see which program uses it; delete the node where none does"),
    ("/raylog/groups", "see which program uses it; delete the node where none does"),
    ("/latest_producer_id_block", "nothing: the next block begins above all that were given out"),
    ("/controller_epoch", "nothing: the next controller's epoch is above all before"),
)


_STATE = re.compile(r"/brokers/topics/[^/]+/partitions/[^/]+/state")


def advice_for(path: str, what: str) -> str:
    """What to do about a node, given what is wrong with it (:attr:`CorruptMetadata.what`)."""
    for phrase, advice in _ADVICE_FOR:
        if phrase in what:
            return advice
    if _STATE.fullmatch(path):
        return "write the value back, with a leader_epoch above all that `raylog log dump` shows of it; or delete it"
    return next((advice for start, advice in _ADVICE if path.startswith(start)), "write its value back, or delete it")


class UnreadableNodes:
    """What was found, by path. Any thread may tell and ask."""

    def __init__(self, *, logs: bool = True) -> None:
        self._logs = logs
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()

    def tell(self, error: CorruptMetadata) -> None:
        """Take note of it; log it unless it was told before."""
        with self._lock:
            if self._known.get(error.path) == error.what or len(self._known) >= MOST:
                return
            self._known[error.path] = error.what
        if self._logs:
            log.warning("skipped what cannot be understood: %s; %s", error, advice_for(error.path, error.what))

    @property
    def known(self) -> Mapping[str, str]:
        """What is wrong with each."""
        with self._lock:
            return dict(self._known)


_OF_THIS_PROCESS = UnreadableNodes()
_list: ContextVar[UnreadableNodes] = ContextVar("unreadable nodes", default=_OF_THIS_PROCESS)


def tell(error: CorruptMetadata) -> None:
    """Take note of what a reader skips."""
    _list.get().tell(error)


def readable(found: T | StoreUnauthorized) -> T:
    """What was read of one of many nodes. Raises CorruptMetadata where that may not be read."""
    if isinstance(found, StoreUnauthorized):
        raise for_good(found)
    return found


def for_good(error: StoreUnauthorized | NoChildrenForEphemerals) -> CorruptMetadata:
    """What the store refuses of one node however often it is asked: nothing can be made of the node."""
    return CorruptMetadata(error.path, str(error).removeprefix(error.path).strip())


def told_count() -> int:
    """How many nodes this process has skipped so far."""
    return len(_OF_THIS_PROCESS.known)


@contextmanager
def skipping() -> Iterator[None]:
    """What is read inside is left out when it cannot be understood, and that is told."""
    try:
        yield
    except CorruptMetadata as error:
        tell(error)


@contextmanager
def collecting() -> Iterator[UnreadableNodes]:
    """What this thread skips inside is put on a list of its own, and not logged."""
    found = UnreadableNodes(logs=False)
    token = _list.set(found)
    try:
        yield found
    finally:
        _list.reset(token)
