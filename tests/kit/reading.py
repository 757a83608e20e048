"""What our own consumer reads of the topic `t`, for tests that ask whether all is there."""

from __future__ import annotations

from kit.cluster import InProcessCluster
from kit.waiting import wait_until
from raylog.client import Consumer

__all__ = ["consumed"]

WAIT_S = 20.0


def consumed(cluster: InProcessCluster, count: int) -> list[bytes | None]:
    """The first ``count`` values of the topic, by a consumer that begins at the beginning."""
    values: list[bytes | None] = []
    with Consumer(cluster.bootstrap_servers, ["t"], auto_offset_reset="earliest", fetch_max_wait_ms=50) as consumer:

        def enough() -> bool:
            for records in consumer.poll(500).values():
                values.extend(record.value for record in records)
            return len(values) >= count

        wait_until(enough, WAIT_S, f"{count} records")
    return values
