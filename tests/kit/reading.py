"""What our own consumer reads, for tests that ask whether all is there."""

from __future__ import annotations

from kit.cluster import InProcessCluster
from kit.waiting import wait_until
from raylog.client import Consumer
from raylog.client.results import ConsumerRecord

__all__ = ["all_records", "consumed"]

WAIT_S = 20.0


def all_records(servers: str, topic: str) -> list[ConsumerRecord]:
    """What the topic holds now: partition after partition, each in the order in which its records come."""
    with Consumer(servers, [topic], auto_offset_reset="earliest") as consumer:
        return sorted(consumer.iterate(until_end=True), key=lambda record: record.partition)


def consumed(cluster: InProcessCluster, count: int) -> list[bytes | None]:
    """The first ``count`` values of the topic `t`, by a consumer that begins at the beginning."""
    values: list[bytes | None] = []
    with Consumer(cluster.bootstrap_servers, ["t"], auto_offset_reset="earliest", fetch_max_wait_ms=50) as consumer:

        def enough() -> bool:
            for records in consumer.poll(500).values():
                values.extend(record.value for record in records)
            return len(values) >= count

        wait_until(enough, WAIT_S, f"{count} records")
    return values
