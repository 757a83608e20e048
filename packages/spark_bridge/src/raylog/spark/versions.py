"""Which raylog a driver and its executors run: they must run the same one.

What travels to executors is this module's :func:`run_here`, a text, and bytes that are opened only after the versions
agreed: another version may lack the function, or know its task by other fields. So nothing here may change its form.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator
from importlib.metadata import version

import pyarrow as pa

from raylog.protocol.errors import UnsupportedVersion

PACKAGES = ("raylog-protocol", "raylog-coordination", "raylog-client", "raylog-spark")


def versions() -> str:
    """Those of this process, as text."""
    return ", ".join(f"{name} {version(name)}" for name in PACKAGES)


def run_here(drivers: str, pickled: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the function that a driver of those versions pickled. Raises UnsupportedVersion when ours are others."""
    ours = versions()
    if ours != drivers:
        raise UnsupportedVersion(
            f"the executor on {socket.gethostname()} runs {ours}, the driver {drivers}: "
            "install the driver's on all nodes"
        )
    yield from pickle.loads(pickled)(batches)
