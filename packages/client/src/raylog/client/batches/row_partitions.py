"""◆ Which partition each of many rows goes to, decided by columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raylog.client.batches.decode import Integers
from raylog.client.batches.partitioner import KeyPartitioner

KEYLESS_RUN = 512
"""Rows without a key go to one partition for so many rows, and then to the next: full batches, even partitions."""


def partitions_by_key(keys: pa.Array, hashes: KeyPartitioner, count: int, keyless: int | Integers = 0) -> Integers:
    """Of each row, by the hash of its key; ``keyless`` where that is null. ``keys`` are binary."""
    coded = keys.dictionary_encode()
    hashed = np.array([hashes.partition(key, count) for key in coded.dictionary.to_pylist()], np.int64)
    if not len(hashed):
        return np.broadcast_to(np.asarray(keyless, np.int64), len(keys)).copy()
    chosen: Integers = hashed[coded.indices.fill_null(0).to_numpy()]
    if keys.null_count:
        chosen = np.where(keys.is_null().to_numpy(zero_copy_only=False), keyless, chosen)
    return chosen


def hashed_keys(keys: pa.Array, null: bytes | None, empty: bytes | None) -> pa.Array:
    """The keys whose hashes decide, see KeyHash: null where nothing does."""
    if null is not None:
        return keys.fill_null(null)
    return keys if empty is not None else pc.if_else(pc.equal(pc.binary_length(keys), 0), None, keys)


def settled_partitions(
    keys: pa.Array, given: pa.Array | None, hashes: KeyPartitioner, count: int, first_row: int
) -> Integers:
    """Of each row, and the same whenever it is asked again: the one it names, or by its key, or by its number.

    ``given`` names partitions, null where a row doesn't care; ``first_row`` is the number of the first of these rows
    among those that are numbered together. Nothing checks that the partitions named exist.
    """
    numbers = np.arange(first_row, first_row + len(keys), dtype=np.int64)
    chosen = partitions_by_key(keys, hashes, count, numbers // KEYLESS_RUN % count)
    if given is None or given.null_count == len(given):
        return chosen
    named = given.cast(pa.int64())
    return np.where(named.is_valid().to_numpy(zero_copy_only=False), named.fill_null(0).to_numpy(), chosen)


def numbers_within(partitions: Integers) -> Integers:
    """Of each row, how many rows before it go to the same partition."""
    order = np.argsort(partitions, kind="stable")
    in_order = partitions[order]
    begins = np.flatnonzero(np.concatenate(([True], in_order[1:] != in_order[:-1]))) if len(order) else order
    lengths = np.diff(np.append(begins, len(order)))
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.arange(len(order)) - np.repeat(begins, lengths)
    return numbers
