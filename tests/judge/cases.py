"""Every request with one value at an edge, as sequences."""

from __future__ import annotations

from collections.abc import Iterator

from judge.bases import BASES, base_of
from judge.edges import edges
from judge.steps import Sequence
from raylog.broker.handlers import TABLE
from raylog.protocol.wire.messages import request_type

__all__ = ["edge_cases"]

SOON = [f"timeout={number}" for number in (-(2**31), -2, -1, 0, 1, 2)]
RACES = {
    **dict.fromkeys(
        ("CreateTopics", "DeleteTopics", "CreatePartitions", "ElectLeaders", "AlterPartitionReassignments"), SOON
    ),
    "JoinGroup": [f"rebalance_{each}" for each in SOON],
}
"""Values that let a clock decide what is answered: whether the controller, or a member, was quick enough."""


def edge_cases() -> Iterator[Sequence]:
    """Of each API at each version that we offer: the ordinary request, and it with one value changed."""
    for row in TABLE:
        base = BASES[row.name]
        for version in range(row.min_version, row.max_version + 1):
            step = base_of(base, row.key, version)
            name = f"{row.name} v{version}"
            yield Sequence(name, (*base.before, step, *base.after))
            for edge in edges(request_type(row.key, version), step.tree):
                if edge.name in RACES.get(row.name, ()):
                    continue
                yield Sequence(f"{name} {edge.name}", (*base.before, step._replace(tree=edge.tree), *base.after))
