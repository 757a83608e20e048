"""The MetadataStore port: a small tree of versioned values with sessions, as ZooKeeper offers it.

Two implementations keep this contract, and one suite (``tests/contracts``) runs over both: ``zookeeper.store``
(ZooKeeper) and ``store.memory`` (whole clusters in one process).

Threads and timing. Every method may be called from any thread and blocks until it is answered, at most
``request_timeout_ms``. Events never run code of the owner: they are *put* on the sink that the owner handed
in, and the owner acts at its own pace. Never call the store from inside a sink.

Watches are ZooKeeper's: a read with ``watch=sink`` delivers at most one event, about the first change
after that very read. To keep watching, read again with a watch. At SUSPENDED all watches are gone: on
CONNECTED, read everything again.

Sessions. Ephemeral nodes live as long as the session that made them. A lost session is replaced by a new
one without being asked: the owner sees LOST, then CONNECTED with another session id, and makes its
ephemerals anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeVar

from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import MonotonicMs, TimestampMs

_T = TypeVar("_T")

ANY_VERSION = -1
"""As an expected version: whatever it is."""


MAX_WRITE_BYTES = 1_000_000
"""What one write may take, all of a multi together: ZooKeeper closes the connection at 1 MiB (jute.maxbuffer)."""

_OP_BYTES = 200
"""Of each operation beside its path and its data, at the most: lengths, access rights, a chroot."""


class NodeChange(Enum):
    CREATED = "created"
    CHANGED = "changed"  # its data
    DELETED = "deleted"
    CHILDREN = "children"  # one of its children came or went


class SessionState(Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"  # not connected; the session may still live: watches are lost, writes are in doubt
    LOST = "lost"  # the session has ended, its ephemerals with it


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """The node that was read with a watch has changed since."""

    path: str
    change: NodeChange


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """The session's state has changed; ``session_id`` is the one concerned."""

    state: SessionState
    session_id: int


StoreEvent = NodeEvent | SessionEvent


class EventSink(Protocol):
    """Where events are put; a ``queue.SimpleQueue`` is one. ``put`` must not block and must not call the store."""

    def put(self, item: StoreEvent, /) -> object: ...


class Versioned(NamedTuple):
    """A node's data and the version that the next compare-and-set names."""

    data: bytes
    version: int


class Stat(NamedTuple):
    """What a node is, without its data."""

    version: int
    ephemeral_owner: int
    """The id of the session that keeps it; 0 for a persistent node."""
    created: int = 0
    """The number of the write that made it. A later write, of any node, has a higher number."""
    changed: int = 0
    """The number of the write that last set its data."""


class Session(NamedTuple):
    """What another process needs to take over a session: kept in a broker's data dir (D9c)."""

    id: int
    password: bytes


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node; NodeExists when there is one, NoNode when its parent is missing."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False
    """Append a ten-digit number that only grows to the path."""


@dataclass(frozen=True, slots=True)
class Set:
    """Replace a node's data; BadVersion unless it is at ``version``."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node; BadVersion unless it is at ``version``, NotEmpty when it has children."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing, but fail with BadVersion unless the node is at ``version``."""

    path: str
    version: int


Op = Create | Set | Delete | Check
OpResult = str | int | None
"""What an operation of a multi answers: Create the path made, Set the new version, Delete and Check None."""


class StoreError(RaylogError):
    """Base of the store's errors. ``path`` is the node; in a multi, ``index`` is the place of the operation
    that failed.
    """

    def __init__(self, message: str, path: str = "", index: int = 0) -> None:
        super().__init__(message)
        self.path = path
        self.index = index


class NodeExists(StoreError): ...


class NoNode(StoreError): ...


class BadVersion(StoreError):
    """The node is at another version than was named: somebody else wrote. Also how a fenced writer learns of it."""


class NotEmpty(StoreError): ...


class NoChildrenForEphemerals(StoreError): ...


class WriteTooLarge(StoreError):
    """More than MAX_WRITE_BYTES at once: nothing was written."""


class BadPath(StoreError):
    """No node can have this path (see :func:`is_path`): nothing was written."""


class StoreUnavailable(StoreError):
    """No answer: not connected, or it came too late. A write may have happened or not: read before writing again."""


class SessionExpired(StoreUnavailable):
    """The session ended before the answer; what was asked did not happen after that, but may have before."""


class StoreUnauthorized(StoreError):
    """The credentials that this takes are missing, or others."""


class StoreClosed(StoreError):
    """``close`` was called."""


_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[\x20-\x2e\x30-\x7e\xa0-\ud7ff\uf900-\uffef]+)+")


def is_path(path: str) -> bool:
    """Whether a node can have this path, by ZooKeeper's rules (PathUtils.validatePath): it begins with "/", no part of
    it is empty, "." or "..", and no character is a control character or outside the basic plane.
    """
    return path == "/" or _PATH.fullmatch(path) is not None


def size_of(op: Op) -> int:
    """How many bytes it takes of a multi, at the most."""
    return len(op.path.encode()) + len(getattr(op, "data", b"")) + _OP_BYTES


def packed(items: Iterable[_T], size: Callable[[_T], int], most_bytes: int, most: int) -> Iterator[list[_T]]:
    """In order, each part small enough for one multi: of so many bytes, as ``size`` tells, and so many items at the
    most; one item alone may be larger.
    """
    part: list[_T] = []
    total = 0
    for item in items:
        item_bytes = size(item)
        if part and (total + item_bytes > most_bytes or len(part) >= most):
            yield part
            part, total = [], 0
        part.append(item)
        total += item_bytes
    if part:
        yield part


def check_writable(ops: Sequence[Op]) -> None:
    """For stores, before they write: BadPath, WriteTooLarge."""
    for index, op in enumerate(ops):
        if not is_path(op.path) or (isinstance(op, Delete) and op.path == "/"):
            raise BadPath(f"{op.path!r} is no path that can be written", op.path, index)
    sizes = [size_of(op) for op in ops]
    if sum(sizes) > MAX_WRITE_BYTES:
        largest = max(range(len(ops)), key=sizes.__getitem__)
        path = ops[largest].path
        raise WriteTooLarge(
            f"{path} takes {sizes[largest]} of {sum(sizes)} bytes, {MAX_WRITE_BYTES} can be written at once",
            path,
            largest,
        )


def all_read(found: Iterable[_T | StoreUnauthorized]) -> list[_T]:
    """What was read of many nodes, or the error of the first that may not be read."""
    read = []
    for each in found:
        if isinstance(each, StoreUnauthorized):
            raise each
        read.append(each)
    return read


class MetadataReader(Protocol):
    """A store for those that must not write, such as what the controller reads with (see :class:`MetadataStore`)."""

    def get(self, path: str, watch: EventSink | None = None) -> Versioned | None:
        """Data and version, or None when there is no such node. The watch reports creation, change and deletion."""

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        """As many :meth:`get` at once, which costs about one round trip; each is read at its own moment."""

    def get_each(self, paths: Sequence[str]) -> list[Versioned | StoreUnauthorized | None]:
        """As :meth:`get_many`, but a node that may not be read takes no other with it: it has its error. For looks over
        nodes that have nothing to do with each other, such as those of many groups.
        """

    def exists(self, path: str, watch: EventSink | None = None) -> Stat | None:
        """The node's stat or None; the watch is that of :meth:`get`."""

    def exists_many(self, paths: Sequence[str]) -> list[Stat | None]:
        """As many :meth:`exists` at once, at the cost of :meth:`get_many`."""

    def children(self, path: str, watch: EventSink | None = None) -> list[str]:
        """The children's names, sorted; [] when there is no such node.

        The watch reports children that come or go and the node's own deletion; on a node that does not
        exist it reports its creation.
        """

    def children_many(self, paths: Sequence[str]) -> list[list[str]]:
        """As many :meth:`children` at once, at the cost of :meth:`get_many`."""

    def children_each(self, paths: Sequence[str]) -> list[list[str] | StoreUnauthorized]:
        """As :meth:`children_many`, with errors as :meth:`get_each`."""


class MetadataStore(MetadataReader, Protocol):
    """See the module's docstring. Paths are absolute, below the store's chroot: ``/brokers/ids/1``. Where no node can
    have a path (:func:`is_path`), reads find none, and writes raise BadPath.
    """

    def start(self) -> None:
        """Connect and open a session; StoreUnavailable when that takes longer than the connect timeout."""

    def close(self) -> None:
        """End the session (its ephemerals vanish at once) and disconnect. May be called twice."""

    def abandon(self) -> None:
        """Disconnect, and leave the session to its timeout, as if the process had died: its ephemerals stay until then.
        In place of :meth:`close`."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def session(self) -> Session:
        """The session in use; StoreUnavailable before the first."""

    @property
    def session_state(self) -> SessionState: ...

    @property
    def session_timeout_ms(self) -> int:
        """What the server granted, which may differ from what was asked."""

    @property
    def last_acknowledged_send_ms(self) -> MonotonicMs | None:
        """When the newest acknowledged :meth:`heartbeat` of this very session was *sent*; None when none was yet.

        The session outlives this moment by ``session_timeout_ms``: a lease may run from here (D9c), not
        from the moment of the answer, which may have been long under way.
        """

    def watch_session(self, sink: EventSink) -> None:
        """Put every later SessionEvent on ``sink``."""

    def heartbeat(self) -> MonotonicMs:
        """Ask the ensemble's leader for a sign that the session lives; the time (monotonic) at which it was sent.

        Raises SessionExpired when the session changed while it was under way, StoreUnavailable without an answer.
        """

    def server_time_ms(self) -> TimestampMs:
        """The server's wall clock at a moment between call and answer. For comparing clocks; nothing rests on it."""

    def end_session(self, session: Session) -> None:
        """End another session, whose process has died, by taking it over and closing it; its ephemerals vanish.

        Does nothing when it has already ended.
        """

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        parents: bool = False,
    ) -> str:
        """Make a node and answer its path (see :class:`Create`); with ``parents``, the missing ones above
        it, too.
        """

    def ensure(self, path: str) -> None:
        """Make the persistent node and those above it where they are missing."""

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Replace the data and answer the new version (see :class:`Set`)."""

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Remove the node (see :class:`Delete`)."""

    def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        """All of ``ops`` in order, or none of them: then the error is that of the first that failed
        (``index``).
        """
