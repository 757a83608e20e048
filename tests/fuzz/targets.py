"""Every fuzz target, by name."""

from __future__ import annotations

from fuzz.target import Target
from fuzz.targets_batch import BATCH_TARGETS
from fuzz.targets_broker import BROKER_TARGETS
from fuzz.targets_client import CLIENT_TARGETS
from fuzz.targets_files import FILE_TARGETS
from fuzz.targets_wire import WIRE_TARGETS

TARGETS: dict[str, Target] = {**WIRE_TARGETS, **BATCH_TARGETS, **BROKER_TARGETS, **FILE_TARGETS, **CLIENT_TARGETS}
