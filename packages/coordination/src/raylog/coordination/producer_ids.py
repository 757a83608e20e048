"""Blocks of producer ids from /latest_producer_id_block: no id is ever given out twice (KIP-98)."""

from __future__ import annotations

import threading

from raylog.coordination import paths
from raylog.coordination.store import BadVersion, MetadataStore, NodeExists
from raylog.protocol.ids import BrokerId, ProducerId

BLOCK_SIZE = 1000


class ProducerIdAllocator:
    """Hands out producer ids; any thread may ask."""

    def __init__(self, store: MetadataStore, broker_id: BrokerId) -> None:
        self._store = store
        self._broker_id = broker_id
        self._lock = threading.Lock()
        self._next = ProducerId(0)
        self._end = ProducerId(-1)

    def next(self) -> ProducerId:
        """A fresh id; StoreUnavailable when a new block is needed and the store does not answer."""
        with self._lock:
            if self._next > self._end:
                block = self._take_block()
                self._next, self._end = block.start, block.end
            taken = self._next
            self._next = ProducerId(taken + 1)
            return taken

    def _take_block(self) -> paths.ProducerIdBlock:
        while True:
            found = self._store.get(paths.PRODUCER_ID_BLOCK)
            start = 0 if found is None else paths.decode_producer_id_block(found.data).end + 1
            block = paths.ProducerIdBlock(self._broker_id, ProducerId(start), ProducerId(start + BLOCK_SIZE - 1))
            data = paths.encode_producer_id_block(block)
            try:
                if found is None:
                    self._store.create(paths.PRODUCER_ID_BLOCK, data)
                else:
                    self._store.set(paths.PRODUCER_ID_BLOCK, data, found.version)
            except (NodeExists, BadVersion):
                continue  # another broker took it
            return block
