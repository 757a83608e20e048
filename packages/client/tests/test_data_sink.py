"""Which datasets are records to send."""

from __future__ import annotations

import pyarrow as pa
import pytest

from raylog.client.ray_data.sink import sendable

VALUES = pa.array([b"a", b"b"])


def test_dataset_with_a_column_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="the column value twice cannot be written"):
        sendable(pa.Table.from_arrays([VALUES, VALUES], names=["value", "value"]))


def test_text_is_sent_as_utf_8() -> None:
    assert sendable(pa.table({"value": ["ü"], "key": VALUES[:1]}))["value"].to_pylist() == ["ü".encode()]
