"""The quickstart's parts that need no cluster: its data are whole, and a wrong count fails the command."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parent.parent / "examples/quickstart.py"


@pytest.fixture(scope="module")
def quickstart() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quickstart", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["quickstart"] = module
    spec.loader.exec_module(module)
    return module


def test_the_data_are_whole(quickstart: ModuleType) -> None:
    carriers = Counter(flight["carrier"] for flight in quickstart.flights())
    assert carriers.total() == quickstart.FLIGHTS == 336_776
    assert carriers.keys() == quickstart.airlines().keys()
    first = next(quickstart.flights())
    assert (first["carrier"], first["arr_delay"], first["tailnum"]) == ("UA", 11, "N14228")


def test_a_wrong_count_is_a_failed_command(quickstart: ModuleType) -> None:
    quickstart.check_counts({"Spark": 336_776})
    with pytest.raises(quickstart.QuickstartFailed, match="wrong counts by Spark: each must be 336,776"):
        quickstart.check_counts({"acknowledged": 336_776, "Spark": 336_775})
