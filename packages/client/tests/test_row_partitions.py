"""Partitions of rows by columns, against the same decision row by row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from raylog.client.batches.partitioner import KeyPartitioner
from raylog.client.batches.row_partitions import KEYLESS_RUN, numbers_within, partitions_by_key, settled_partitions

keys = st.lists(st.none() | st.binary(max_size=3), max_size=40)


@given(keys, st.integers(1, 7))
def test_a_key_goes_where_clients_send_it(names: list[bytes | None], count: int) -> None:
    hashes = KeyPartitioner()
    found = partitions_by_key(pa.array(names, pa.binary()), hashes, count, 99)
    assert found.tolist() == [99 if name is None else hashes.partition(name, count) for name in names]


@given(st.data(), keys, st.integers(1, 7), st.integers(0, 3 * KEYLESS_RUN))
def test_a_row_goes_to_the_partition_it_names_or_by_key_or_number(
    data: st.DataObject, names: list[bytes | None], count: int, first: int
) -> None:
    wanted = data.draw(st.lists(st.none() | st.integers(0, 9), min_size=len(names), max_size=len(names)))
    hashes = KeyPartitioner()
    found = settled_partitions(pa.array(names, pa.binary()), pa.array(wanted, pa.int32()), hashes, count, first)
    assert found.tolist() == [
        named
        if named is not None
        else (first + row) // KEYLESS_RUN % count
        if name is None
        else hashes.partition(name, count)
        for row, (name, named) in enumerate(zip(names, wanted, strict=True))
    ]


@given(keys, st.integers(0, 40), st.integers(1, 7))
def test_where_rows_go_does_not_depend_on_how_they_are_cut(names: list[bytes | None], cut: int, count: int) -> None:
    column = pa.array(names, pa.binary())
    whole = settled_partitions(column, None, KeyPartitioner(), count, 0)
    parts = [
        settled_partitions(column[:cut], None, KeyPartitioner(), count, 0),
        settled_partitions(column[cut:], None, KeyPartitioner(), count, len(column[:cut])),
    ]
    assert np.concatenate(parts).tolist() == whole.tolist()


@given(st.lists(st.integers(0, 4), max_size=40))
def test_rows_are_numbered_within_their_partition(partitions: list[int]) -> None:
    found = numbers_within(np.array(partitions, np.int64)).tolist()
    assert found == [partitions[:row].count(partition) for row, partition in enumerate(partitions)]
