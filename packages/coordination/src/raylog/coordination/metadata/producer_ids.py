"""Blocks of producer ids from /latest_producer_id_block: no id is ever given out twice (KIP-98)."""

from __future__ import annotations

import threading
from typing import NamedTuple

from raylog.coordination.metadata import paths
from raylog.coordination.store.node_json import INT64, Reading, decimal, dump, integer, load
from raylog.coordination.store.port import BadVersion, MetadataStore, NodeExists, Versioned
from raylog.coordination.store.unreadable import tell
from raylog.protocol.ids import BrokerId, ProducerId

BLOCK_SIZE = 1000


class ProducerIdBlock(NamedTuple):
    """The ids from ``start`` to ``end``, both included, were given to ``broker_id``."""

    broker_id: BrokerId
    start: ProducerId
    end: ProducerId


def encode_block(block: ProducerIdBlock) -> bytes:
    return dump(
        {
            "version": 1,
            "broker": block.broker_id,
            "block_start": str(block.start),
            "block_end": str(block.end),
        }
    )


def decode_block(data: bytes) -> ProducerIdBlock:
    value = load(paths.PRODUCER_ID_BLOCK, data)
    with Reading(paths.PRODUCER_ID_BLOCK):
        return ProducerIdBlock(
            BrokerId(integer(value["broker"])),
            ProducerId(decimal(value["block_start"])),
            ProducerId(decimal(value["block_end"], 0, INT64 - 2 * BLOCK_SIZE)),
        )


def _first_free(found: Versioned) -> int:
    """The first id above all that were given out, also where the node cannot be read: each block raised its version."""
    try:
        return decode_block(found.data).end + 1
    except paths.CorruptMetadata as error:
        tell(error)
        return (found.version + 1) * BLOCK_SIZE


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

    def _take_block(self) -> ProducerIdBlock:
        while True:
            found = self._store.get(paths.PRODUCER_ID_BLOCK)
            start = 0 if found is None else _first_free(found)
            block = ProducerIdBlock(self._broker_id, ProducerId(start), ProducerId(start + BLOCK_SIZE - 1))
            data = encode_block(block)
            try:
                if found is None:
                    self._store.create(paths.PRODUCER_ID_BLOCK, data)
                else:
                    self._store.set(paths.PRODUCER_ID_BLOCK, data, found.version)
            except (NodeExists, BadVersion):
                continue  # another broker took it
            return block
