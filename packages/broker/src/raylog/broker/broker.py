"""The broker's composition root: storage, server, coordination and control joined in one process, without Ray."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raylog.coordination.peer_control import PeerControl
from raylog.coordination.store import MetadataStore
from raylog.protocol.records import Batches
from raylog.protocol.settings import Settings

__all__ = ["Broker"]


class Broker:
    """One broker. ``start`` returns once clients can connect and the broker is registered."""

    def __init__(
        self, settings: Settings, data_dir: Path, *, store: MetadataStore, peer_control: PeerControl
    ) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Open the log dirs, register, listen."""
        raise NotImplementedError

    def stop(self, *, clean: bool = True) -> None:
        """Stop serving; ``clean`` flushes, writes the clean-stop markers and ends the session."""
        raise NotImplementedError

    @property
    def endpoints(self) -> Mapping[str, tuple[str, int]]:
        """The advertised host and port of each listener, by listener name."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """What `raylog status` tells of this broker."""
        raise NotImplementedError

    def produce(self, topic: str, partition: int, batches: bytes, acks: int = -1) -> tuple[int, int]:
        """Append whole record batches; the offsets of the first and the last record."""
        raise NotImplementedError

    def fetch(self, topic: str, partition: int, offset: int, max_bytes: int) -> Batches:
        """The batches from ``offset`` on, undecoded, with the high watermark."""
        raise NotImplementedError

    def control(self, payload: bytes) -> bytes:
        """A message from the controller (see peer_control) and its answer."""
        raise NotImplementedError
