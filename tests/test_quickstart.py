"""The quickstart without a cluster: its data are whole, its handler counts each record once, a wrong count fails it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from raylog.client.results import ConsumerRecord
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

EXAMPLES = Path(__file__).parent.parent / "examples"
TP = TopicPartition(TopicName("flights"), PartitionIndex(3))


@pytest.fixture(scope="module")
def quickstart() -> Iterator[ModuleType]:
    sys.path.insert(0, str(EXAMPLES))
    try:
        yield import_module("quickstart")
    finally:
        sys.path.remove(str(EXAMPLES))


def flown(first: int, *delays: int | None) -> list[ConsumerRecord]:
    """Flights of one carrier, from offset ``first`` on."""
    return [
        ConsumerRecord(*TP, offset, 0, 0, b"UA", json.dumps({"carrier": "UA", "arr_delay": delay}).encode(), ())
        for offset, delay in enumerate(delays, first)
    ]


def test_the_data_are_whole(quickstart: ModuleType) -> None:
    carriers = Counter(flight["carrier"] for flight in quickstart.flights())
    assert carriers.total() == quickstart.FLIGHTS == 336_776
    assert carriers.keys() == quickstart.airlines().keys()
    assert {carrier: sums.flights for carrier, sums in quickstart.true_delays().items()} == carriers
    first = next(quickstart.flights())
    assert (first["carrier"], first["arr_delay"], first["tailnum"]) == ("UA", 11, "N14228")


def test_the_handler_counts_each_record_once_however_often_it_comes(quickstart: ModuleType, tmp_path: Path) -> None:
    database = tmp_path / "delays.db"
    one, other = quickstart.Delays(database), quickstart.Delays(database)
    try:
        assert one.on_assigned([TP]) == {}
        one(flown(0, 10, None))
        one(flown(0, 10, None))  # again: it was in doubt
        other(flown(1, None, -3))  # another member, which had read on from an older offset
        assert other.on_assigned([TP]) == {TP: 3}
        assert quickstart.read_delays(database) == {"UA": (3, 7)}
    finally:
        one.close()
        other.close()


def test_the_handler_counts_all_of_a_batch_or_nothing(quickstart: ModuleType, tmp_path: Path) -> None:
    database = tmp_path / "delays.db"
    handler = quickstart.Delays(database)
    try:
        with pytest.raises(json.JSONDecodeError):
            handler([*flown(0, 10), ConsumerRecord(*TP, 1, 0, 0, b"UA", b"{", ())])
        assert handler.on_assigned([TP]) == {}
        assert quickstart.read_delays(database) == {}
    finally:
        handler.close()


def test_a_wrong_count_is_a_failed_command(quickstart: ModuleType) -> None:
    quickstart.check_counts({"Spark": 336_776})
    with pytest.raises(quickstart.QuickstartFailed, match="wrong counts by Spark: each must be 336,776"):
        quickstart.check_counts({"acknowledged": 336_776, "Spark": 336_775})
