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
NO_GROUP: Bad = ("", b"g", None, 5, ["g"])
NO_PARTITION: Bad = (*NO_NUMBER, None)
NO_PAIR: Bad = (
    *("t", b"t", 5, (), ("t",), ("t", 0, 0), ("t", "0"), ("t", True), ("t", -1), ("t", 1.0), ("t", 2**31)),
    *((topic, 0) for topic in NO_TOPIC),
)
NO_PAIRS: Bad = ("t", b"t", 5, *([pair] for pair in NO_PAIR))
NO_NAMES: Bad = ("t", b"t", 5, None, [""], [b"t"], [None], [5], ["t", "t"])
NO_SERVERS: Bad = (b"h:1", 5, True, "", [], "host", "host:x", [None], [b"h:1"], {"h": 1})
NO_CONVERTER: Bad = (5, "no such", b"json", ["json"])
NO_SETTINGS: Bad = ({"no_such": 1}, {"client_id": b"x"}, {"client_id": True}, {"request_timeout_ms": 0},
                    {"request_timeout_ms": 1.5}, {"request_timeout_ms": True}, {"group.instance.id": "a"})  # fmt: skip
NO_CONFIGS: Bad = (5, "a=b", ["a"], {5: "1"}, {"": "1"}, {"retention.ms": b"1"}, {"retention.ms": [1]})
NO_BROKERS: Bad = (5, "12", [], [-1], ["0"], [True], [0, 0])
