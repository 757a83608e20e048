"""The clock of leases in a machine that was suspended: seen in a time namespace, where that clock alone is ahead."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kit import namespaces
from kit.machine import scaled

SUSPENDED_S = 1_000
LOOK = (
    "import time; from raylog.coordination.host.clocks import monotonic_ms; "
    "print(monotonic_ms() - 1000 * time.monotonic())"
)


@pytest.mark.skipif(not namespaces.available(), reason="takes root and namespaces")
def test_leases_run_while_the_machine_is_suspended() -> None:
    """CLOCK_MONOTONIC stands still then: a lease would be held after the session has ended for all others."""
    command = ["unshare", "--time", "--boottime", str(SUSPENDED_S), "--fork", sys.executable, "-c", LOOK]
    looked = subprocess.run(command, capture_output=True, text=True, check=True, timeout=scaled(60))
    assert float(looked.stdout) >= SUSPENDED_S * 1_000 - 1_000
