"""What kazoo tells of a node, put on the sink of the one that watches it."""

from __future__ import annotations

from kazoo.protocol.states import EventType, WatchedEvent

from raylog.coordination.store.port import EventSink, NodeChange, NodeEvent

_CHANGES = {
    EventType.CREATED: NodeChange.CREATED,
    EventType.CHANGED: NodeChange.CHANGED,
    EventType.DELETED: NodeChange.DELETED,
    EventType.CHILD: NodeChange.CHILDREN,
}


class Watcher:
    """Puts what happens to a node on a sink. Equal for equal sinks, so that kazoo keeps one per node and sink."""

    def __init__(self, sink: EventSink, chroot: str) -> None:
        self._sink = sink
        self._chroot = chroot

    def __call__(self, event: WatchedEvent) -> None:
        change = _CHANGES.get(event.type)  # NONE: the connection dropped, which the session's sinks hear of
        if change is not None:
            self._sink.put(NodeEvent(event.path.removeprefix(self._chroot) or "/", change))

    def __hash__(self) -> int:
        return id(self._sink)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Watcher) and self._sink is other._sink
