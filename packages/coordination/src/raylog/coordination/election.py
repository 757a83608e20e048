"""Controller election: an ephemeral /controller, and /controller_epoch raised in the same multi (D8)."""

from __future__ import annotations

from typing import NamedTuple

from raylog.coordination.store import EventSink, MetadataStore
from raylog.protocol.ids import BrokerId, ControllerEpoch, TimestampMs


class Mandate(NamedTuple):
    """What the winner holds: its epoch and the version of /controller_epoch that its writes check."""

    epoch: ControllerEpoch
    epoch_version: int


def campaign(
    store: MetadataStore, broker_id: BrokerId, now_ms: TimestampMs, watch: EventSink
) -> Mandate | None:
    """Try to become the controller: the mandate, or None when another is.

    Leaves a watch on /controller either way. After StoreUnavailable, call it again: a win that was not
    heard of is recognised by its session.
    """
    raise NotImplementedError


def resign(store: MetadataStore) -> None:
    """Give up /controller when this session holds it."""
    raise NotImplementedError


def current_controller(store: MetadataStore, watch: EventSink | None = None) -> BrokerId | None:
    raise NotImplementedError
