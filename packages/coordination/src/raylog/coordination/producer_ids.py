"""Blocks of producer ids from /latest_producer_id_block: no id is ever given out twice (KIP-98)."""

from __future__ import annotations

from raylog.coordination.store import MetadataStore
from raylog.protocol.ids import BrokerId, ProducerId

BLOCK_SIZE = 1000


class ProducerIdAllocator:
    """Hands out producer ids; any thread may ask."""

    def __init__(self, store: MetadataStore, broker_id: BrokerId) -> None: ...

    def next(self) -> ProducerId:
        """A fresh id; StoreUnavailable when a new block is needed and the store does not answer."""
        raise NotImplementedError
