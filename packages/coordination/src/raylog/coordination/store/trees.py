"""Deletes what is ours with all that stands below it, whoever made that."""

from __future__ import annotations

from collections.abc import Sequence

from raylog.coordination.store.port import MAX_WRITE_BYTES, Delete, MetadataStore, NoNode, NotEmpty, Op, packed, size_of

__all__ = ["delete_tree", "nodes_below"]

_AT_ONCE = 500
"""Nodes in one multi, at the most."""
_ATTEMPTS = 10
"""Others may write into it meanwhile."""


def nodes_below(store: MetadataStore, path: str) -> list[str]:
    """The node and all below it, children first; also when there is no such node."""
    nodes, level = [], [path]
    while level:
        nodes += level
        children = store.children_many(level)
        level = [f"{parent}/{name}" for parent, names in zip(level, children, strict=True) for name in names]
    return nodes[::-1]


def delete_tree(store: MetadataStore, path: str, guards: Sequence[Op] = ()) -> None:
    """Remove the node and all below it; nothing when it is gone.

    ``guards`` come first in every multi: one that fails raises its error. Who dies half-way leaves the rest, to be
    deleted again. Raises NotEmpty when others go on to write into it.
    """
    for attempt in range(_ATTEMPTS):
        try:
            _delete(store, path, guards)
            return
        except (NoNode, NotEmpty) as error:
            if error.index < len(guards) or attempt == _ATTEMPTS - 1:
                raise


def _delete(store: MetadataStore, path: str, guards: Sequence[Op]) -> None:
    if store.exists(path) is None:
        return
    room = MAX_WRITE_BYTES - sum(map(size_of, guards))
    for deletes in packed(map(Delete, nodes_below(store, path)), size_of, room, _AT_ONCE):
        store.multi([*guards, *deletes])
