"""The tree that memory stores share: nodes, sessions and watches, as a ZooKeeper server keeps them."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from raylog.coordination.store.port import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    EventSink,
    NoChildrenForEphemerals,
    NodeChange,
    NodeEvent,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    OpResult,
    Session,
    Set,
    Stat,
    StoreError,
    StoreUnauthorized,
    Versioned,
    is_path,
)


class Client(Protocol):
    """What the tree knows of a store."""

    @property
    def session(self) -> Session: ...

    def session_ended(self) -> None:
        """The tree has ended the client's session."""


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


@dataclass(slots=True)
class _Node:
    data: bytes = b""
    version: int = 0
    owner: int = 0
    children: set[str] = field(default_factory=set)
    children_made: int = 0  # numbers the sequential ones
    created: int = 0
    changed: int = 0


_Saved = tuple[str, _Node | None]
"""A path and a copy of what was there, to go back to when a multi fails."""


@dataclass(frozen=True, slots=True)
class _Watch:
    store: Client
    sink: EventSink

    def __hash__(self) -> int:
        return hash((id(self.store), id(self.sink)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Watch) and self.store is other.store and self.sink is other.sink


@dataclass(slots=True)
class _Lag:
    """A client whose server is behind: what it has not heard of."""

    at: int
    """How many writes that server has seen."""
    held: list[tuple[EventSink, NodeEvent]] = field(default_factory=list)
    watches: dict[tuple[str, bool, _Watch], None] = field(default_factory=dict)
    """Set meanwhile: path, whether of its children."""


class MemoryTree:
    """The server: nodes, sessions and watches. One lock guards all; events are put while it is held."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._nodes: dict[str, _Node] = {"/": _Node()}
        self._ids = itertools.count(1)
        self._sessions: dict[int, Client] = {}
        self._data_watches: dict[str, set[_Watch]] = defaultdict(set)
        self._child_watches: dict[str, set[_Watch]] = defaultdict(set)
        self._writes = 0
        self._lags: dict[int, _Lag] = {}
        """By the id() of the client."""
        self._former: dict[str, list[tuple[int, _Node | None]]] = defaultdict(list)
        """What each node was before the write of that number; kept while somebody is behind."""
        self.unreadable: set[str] = set()
        """Scripted: nodes that are closed to every client's credentials, for reading."""

    # --- sessions

    def open_session(self, store: Client) -> Session:
        with self.lock:
            session = Session(next(self._ids), b"%016d" % id(store))
            self._sessions[session.id] = store
            return session

    def is_live(self, session_id: int) -> bool:
        return session_id in self._sessions

    def end_session(self, session: Session, *, told: bool = True) -> None:
        """Remove the session and its ephemerals; ``told``: its client, if it is connected, learns of it."""
        with self.lock:
            store = self._sessions.get(session.id)
            if store is None or store.session.password != session.password:
                return
            del self._sessions[session.id]
            for path in [path for path, node in self._nodes.items() if node.owner == session.id]:
                self._apply([Delete(path)], session.id)
            if told:
                store.session_ended()

    def expire(self, session_id: int) -> None:
        """End a session as the server does when it has heard nothing for the session's timeout."""
        with self.lock:
            if session_id in self._sessions:
                self.end_session(self._sessions[session_id].session)

    def forget_watches(self, store: Client) -> None:
        self._lags.pop(id(store), None)
        for watches in (self._data_watches, self._child_watches):
            for path in list(watches):
                watches[path] = {watch for watch in watches[path] if watch.store is not store}

    # --- servers that are behind

    def fall_behind(self, store: Client) -> None:
        """The server of this client sees no write from now on, and tells of none, until :meth:`catch_up`."""
        with self.lock:
            self._lags.setdefault(id(store), _Lag(self._writes))

    def catch_up(self, store: Client) -> None:
        """It has seen all writes: its client is told what its watches have missed."""
        with self.lock:
            lag = self._lags.pop(id(store), None)
            if lag is None:
                return
            for sink, event in lag.held:
                sink.put(event)
            for path, of_children, watch in lag.watches:
                change = self._first_change(path, lag.at, of_children=of_children)
                if change is None:
                    (self._child_watches if of_children else self._data_watches)[path].add(watch)
                else:
                    watch.sink.put(NodeEvent(path, change))
            if not self._lags:
                self._former.clear()

    def _first_change(self, path: str, since: int, *, of_children: bool) -> NodeChange | None:
        """What a watch that was set after so many writes has missed."""
        states = [node for number, node in self._former.get(path, ()) if number > since] + [self._nodes.get(path)]
        for before, after in itertools.pairwise(states):
            if before is None or after is None:
                if before is not after:
                    return NodeChange.DELETED if after is None else NodeChange.CREATED
            elif of_children:
                if before.children != after.children:
                    return NodeChange.CHILDREN
            elif before.version != after.version:
                return NodeChange.CHANGED
        return None

    def _seen(self, path: str, store: Client | None) -> _Node | None:
        """The node as the client's server has it; None is a server that is not behind."""
        lag = self._lags.get(id(store)) if store is not None else None
        for number, node in self._former.get(path, ()) if lag is not None else ():
            if lag is not None and number > lag.at:
                return node
        return self._nodes.get(path)

    # --- reads: ``store`` is the client that asks

    def get(self, path: str, store: Client | None = None) -> Versioned | None:
        self._check_readable(path)
        node = self._seen(path, store)
        return None if node is None else Versioned(node.data, node.version)

    def stat(self, path: str, store: Client | None = None) -> Stat | None:
        node = self._seen(path, store)
        return None if node is None else Stat(node.version, node.owner, node.created, node.changed)

    def _check_readable(self, path: str) -> None:
        if path in self.unreadable:
            raise StoreUnauthorized(f"{path} is closed to these credentials", path)

    def children(self, path: str, store: Client | None = None) -> list[str] | None:
        self._check_readable(path)
        node = self._seen(path, store)
        return None if node is None else sorted(node.children)

    def watch(self, path: str, store: Client, sink: EventSink, *, children: bool = False) -> None:
        if not is_path(path):
            return
        watch = _Watch(store, sink)
        lag = self._lags.get(id(store))
        if lag is not None:
            lag.watches[path, children, watch] = None
        else:
            (self._child_watches if children else self._data_watches)[path].add(watch)

    # --- writes

    def multi(self, ops: Sequence[Op], session_id: int) -> list[OpResult]:
        with self.lock:
            return self._apply(ops, session_id)

    def _apply(self, ops: Sequence[Op], session_id: int) -> list[OpResult]:
        saved: list[_Saved] = []
        events: list[tuple[NodeChange, str]] = []
        results: list[OpResult] = []
        for index, op in enumerate(ops):
            try:
                results.append(self._apply_one(op, session_id, saved, events))
            except StoreError as error:
                for path, node in reversed(saved):
                    self._place(path, node)
                error.index = index
                raise
        self._writes += 1
        for path, node in saved if self._lags else ():
            self._former[path].append((self._writes, node))
        for change, path in events:
            self._fire(change, path)
        return results

    def _apply_one(
        self, op: Op, session_id: int, saved: list[_Saved], events: list[tuple[NodeChange, str]]
    ) -> OpResult:
        match op:
            case Create():
                return self._create(op, session_id, saved, events)
            case Set():
                node = self._at_version(op.path, op.version)
                saved.append(self._copy(op.path))
                node.data, node.version, node.changed = op.data, node.version + 1, self._writes + 1
                events.append((NodeChange.CHANGED, op.path))
                return node.version
            case Delete():
                node = self._at_version(op.path, op.version)
                if node.children:
                    raise NotEmpty(f"{op.path} has children: {sorted(node.children)[:3]}", op.path)
                self._save(op.path, saved)
                self._place(op.path, None)
                events.append((NodeChange.DELETED, op.path))
                return None
            case Check():
                self._at_version(op.path, op.version)
                return None

    def _copy(self, path: str) -> _Saved:
        node = self._nodes.get(path)
        return path, None if node is None else replace(node, children=set(node.children))

    def _save(self, path: str, saved: list[_Saved]) -> None:
        """Before the node comes or goes: its parent changes, too, which only clients that are behind ask for."""
        if self._lags:
            saved.append(self._copy(parent_of(path)))
        saved.append(self._copy(path))

    def _place(self, path: str, node: _Node | None) -> None:
        """Put this node in its place, or leave the place empty."""
        siblings, name = self._nodes[parent_of(path)].children, path.rpartition("/")[2]
        if node is None:
            self._nodes.pop(path, None)
            siblings.discard(name)
        else:
            self._nodes[path] = node
            siblings.add(name)

    def _at_version(self, path: str, version: int) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            raise NoNode(f"there is no node {path}", path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(f"{path} is at version {node.version}, not at {version}", path)
        return node

    def _create(
        self,
        op: Create,
        session_id: int,
        saved: list[_Saved],
        events: list[tuple[NodeChange, str]],
    ) -> str:
        parent = self._nodes.get(parent_of(op.path))
        if parent is None:
            raise NoNode(f"{op.path} has no parent node", op.path)
        if parent.owner:
            raise NoChildrenForEphemerals(f"the parent of {op.path} is ephemeral", op.path)
        path = f"{op.path}{parent.children_made:010d}" if op.sequence else op.path
        if path in self._nodes:
            raise NodeExists(f"{path} exists", path)
        self._save(path, saved)
        made = self._writes + 1
        self._place(path, _Node(op.data, owner=session_id if op.ephemeral else 0, created=made, changed=made))
        parent.children_made += 1
        events.append((NodeChange.CREATED, path))
        return path

    def _fire(self, change: NodeChange, path: str) -> None:
        told = self._data_watches.pop(path, set())
        if change is NodeChange.DELETED:
            told = told | self._child_watches.pop(path, set())
        for watch in told:
            self._put(watch, NodeEvent(path, change))
        if change in (NodeChange.CREATED, NodeChange.DELETED):
            for watch in self._child_watches.pop(parent_of(path), set()):
                self._put(watch, NodeEvent(parent_of(path), NodeChange.CHILDREN))

    def _put(self, watch: _Watch, event: NodeEvent) -> None:
        lag = self._lags.get(id(watch.store))
        if lag is not None:
            lag.held.append((watch.sink, event))
        else:
            watch.sink.put(event)
