"""Values that an argument cannot have, by what it is."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from typing import Any

from raylog.protocol.errors import (
    InvalidConfig,
    InvalidGroupId,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
)

REFUSALS = (
    InvalidConfig,
    InvalidGroupId,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidReplicaAssignment,
    InvalidRequest,
    InvalidTopic,
)
"""The errors that refuse a value."""
Bad = Sequence[Any]

NO_WAIT: Bad = (-1, -0.1, nan, inf, "1", b"1", True, [1])
NO_COUNT: Bad = (0, -1, 1.5, "1", True, 2**31)
NO_NUMBER: Bad = (-1, 1.5, "0", True, b"0", 2**31)
NO_OFFSET: Bad = (-1, 1.5, "0", True, None, 2**63)
NO_FLAG: Bad = ("false", 1, None, "")
NO_TOPIC: Bad = ("", b"t", None, 5, ["t"], "no/such", "x" * 250)
LONG = "x" * 40_000
"""More than the 32,767 bytes that a text may have where it is sent."""
NO_UNICODE = "\ud800"
NO_GROUP: Bad = ("", b"g", None, 5, ["g"], LONG, NO_UNICODE)
NO_PARTITION: Bad = (*NO_NUMBER, None)
NO_PAIR: Bad = (
    *("t", b"t", 5, (), ("t",), ("t", 0, 0), ("t", "0"), ("t", True), ("t", -1), ("t", 1.0), ("t", 2**31)),
    *((topic, 0) for topic in NO_TOPIC),
)
NO_PAIRS: Bad = ("t", b"t", 5, *([pair] for pair in NO_PAIR))
NO_NAMES: Bad = ("t", b"t", 5, None, [""], [b"t"], [None], [5], ["t", "t"], [LONG], [NO_UNICODE])
NO_SERVERS: Bad = (b"h:1", 5, True, "", [], "host", "host:x", [None], [b"h:1"], {"h": 1})


async def later(_: Any) -> Any:
    """Calling it does nothing yet."""


NO_CONVERTER: Bad = (5, "no such", b"json", ["json"], later)
NO_SETTINGS: Bad = (
    *({"no_such": 1}, {"client_id": b"x"}, {"client_id": True}, {"client_id": LONG}, {"client_id": NO_UNICODE}),
    *({"request_timeout_ms": bad} for bad in (0, 1.5, True, 2**31, nan)),
    {"group.protocol": "x"},
)
NO_CONFIGS: Bad = (5, "a=b", ["a"], {5: "1"}, {"": "1"}, {"retention.ms": b"1"}, {"retention.ms": [1]},
                   {"retention.ms": 2**63}, {"retention.ms": nan}, {"retention.ms": NO_UNICODE}, {"retention.ms": LONG},
                   {NO_UNICODE: "1"}, {LONG: "1"}, {"no.such": "1"})  # fmt: skip
NO_BROKERS: Bad = (5, "12", [], [-1], ["0"], [True], [0, 0], [2**31])


def shown(value: object, most: int = 200) -> str:
    """A value such that a report can write it."""
    return ascii(value)[:most]
