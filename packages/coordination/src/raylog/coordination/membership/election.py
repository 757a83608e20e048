"""Controller election: an ephemeral /controller, and /controller_epoch raised in the same multi (D8)."""

from __future__ import annotations

from typing import NamedTuple

from raylog.coordination.metadata import paths
from raylog.coordination.metadata.model import NO_CONTROLLER_EPOCH
from raylog.coordination.store.port import (
    BadVersion,
    Check,
    Create,
    Delete,
    EventSink,
    MetadataStore,
    NodeExists,
    NoNode,
    Set,
    Versioned,
)
from raylog.coordination.store.trees import delete_tree
from raylog.coordination.store.unreadable import skipping, tell
from raylog.protocol.ids import BrokerId, ControllerEpoch, TimestampMs

_MOST_WRITES = 4_000
"""In one multi, of some 220 bytes each (see MAX_WRITE_BYTES): each raises the version by one."""


class Mandate(NamedTuple):
    """What the winner holds: its epoch and the version of /controller_epoch that its writes check."""

    epoch: ControllerEpoch
    epoch_version: int


def campaign(
    store: MetadataStore,
    broker_id: BrokerId,
    now_ms: TimestampMs,
    watch: EventSink,
    known: ControllerEpoch = NO_CONTROLLER_EPOCH,
) -> Mandate | None:
    """Try to become the controller: the mandate, or None when another is.

    Leaves a watch on /controller either way; it also reports our own win, and campaigning again then
    answers the same mandate. So does campaigning after StoreUnavailable, when a win was not heard of. Where another
    program wrote over our epoch, brokers would refuse what we say in a lower one, and states would bear one that the
    store does not know: a higher one is written first. So it is where the node was deleted, and perhaps made anew at 0:
    it goes on above ``known``, the latest epoch that brokers have heard of.
    """
    while True:
        found = store.get(paths.CONTROLLER_EPOCH)  # before the holder, or it might be our successor's
        holder = store.exists(paths.CONTROLLER, watch)
        is_others = holder is not None and holder.ephemeral_owner not in (0, store.session.id)
        if found is None or (_epoch(found) < known and not is_others):
            _restore(store, found, known)
            continue
        epoch = _epoch(found)
        if holder is not None and not holder.ephemeral_owner:
            tell(paths.CorruptMetadata(paths.CONTROLLER, "names no controller: no session keeps it; it is removed"))
            try:
                delete_tree(store, paths.CONTROLLER, (Check(paths.CONTROLLER_EPOCH, found.version),))
            except BadVersion:
                pass  # another was faster, and may have won
            continue
        if holder is not None:
            if holder.ephemeral_owner != store.session.id:
                return None
            if found.data == paths.encode_number(epoch):
                return Mandate(epoch, found.version)
            above = Set(paths.CONTROLLER_EPOCH, paths.encode_number(found.version + 1), found.version)
            try:
                store.multi([above])
            except BadVersion:
                pass  # somebody wrote again: look again
            continue
        try:
            store.multi(
                [
                    Create(paths.CONTROLLER, paths.encode_controller(broker_id, now_ms), ephemeral=True),
                    Set(paths.CONTROLLER_EPOCH, paths.encode_number(epoch + 1), found.version),
                ]
            )
        except (NodeExists, BadVersion):
            pass  # another was faster: look again


def take_over(store: MetadataStore, broker_id: BrokerId, now_ms: TimestampMs, dead: BrokerId) -> bool:
    """Replace a controller that seems dead, before its session ends (D9); False when it is another's by now.

    Should it be alive, it is deposed: /controller_epoch has risen, which all its writes check. Campaign afterwards,
    whatever this answers, for the mandate and the watch.
    """
    epoch = store.get(paths.CONTROLLER_EPOCH)
    if epoch is None or current_controller(store) != dead:
        return False
    try:
        store.multi(
            [
                Set(
                    paths.CONTROLLER_EPOCH,
                    paths.encode_number(_epoch(epoch) + 1),
                    epoch.version,
                ),
                Delete(paths.CONTROLLER),
                Create(paths.CONTROLLER, paths.encode_controller(broker_id, now_ms), ephemeral=True),
            ]
        )
    except (BadVersion, NoNode, NodeExists):
        return False  # another was faster, or it resigned
    return True


def resign(store: MetadataStore) -> None:
    """Give up /controller when this session holds it, also where another program deleted /controller_epoch."""
    missing = (Create(paths.CONTROLLER_EPOCH), Delete(paths.CONTROLLER_EPOCH))  # a broker makes it before it takes over
    while True:
        epoch = store.get(paths.CONTROLLER_EPOCH)  # before the holder: it rises when another takes over
        holder = store.exists(paths.CONTROLLER)
        if holder is None or holder.ephemeral_owner != store.session.id:
            return
        as_read = missing if epoch is None else (Check(paths.CONTROLLER_EPOCH, epoch.version),)
        try:
            store.multi([*as_read, Delete(paths.CONTROLLER)])
        except (BadVersion, NodeExists, NoNode):
            pass  # another took over, or only wrote there: look again


def current_controller(store: MetadataStore, watch: EventSink | None = None) -> BrokerId | None:
    """The controller's broker id; None while there is none."""
    found = store.get(paths.CONTROLLER, watch)
    if found is not None:
        with skipping():
            return paths.decode_controller(found.data)
    return None


def _restore(store: MetadataStore, found: Versioned | None, known: ControllerEpoch) -> None:
    """Raise epoch and version above ``known``, the version as far as one multi takes: a controller of before, that was
    stopped, might find the version that its writes check.
    """
    epoch = known + 1
    first = Create(paths.CONTROLLER_EPOCH) if found is None else Check(paths.CONTROLLER_EPOCH, found.version)
    version = 0 if found is None else found.version
    writes = min(max(epoch - version, 1), _MOST_WRITES)
    raised = [Set(paths.CONTROLLER_EPOCH, paths.encode_number(epoch))] * writes
    try:
        store.multi([first, *raised])
    except (BadVersion, NoNode, NodeExists):
        pass  # another was faster: look again


def _epoch(found: Versioned) -> ControllerEpoch:
    """The last controller's epoch; where another program wrote there, one that is not below any that was in force: each
    controller raised the node's version with its epoch.
    """
    written = ControllerEpoch(0)
    with skipping():
        written = paths.decode_controller_epoch(found.data)
    return ControllerEpoch(max(written, found.version))
