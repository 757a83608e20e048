"""What importing the package costs every process."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("first", ["", "import hypothesis; "])
@pytest.mark.parametrize("module", ["raylog.protocol.errors", "raylog.client.admin", "raylog.broker.handlers"])
def test_kio_brings_hypothesis_along_only_where_it_is_used(first: str, module: str) -> None:
    program = f"{first}import sys, {module}; print('hypothesis' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == str(bool(first))


def test_hypothesis_can_still_be_imported_afterwards() -> None:
    program = "import raylog.protocol.errors, hypothesis.strategies as s; s.integers()"
    subprocess.run([sys.executable, "-c", program], check=True)
