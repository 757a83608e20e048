"""The consumer: assigned partitions, read in order from where the user says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from raylog.client.results import ConsumerRecord, OffsetAndTimestamp
from raylog.protocol.ids import TopicPartition


class Consumer:
    """Reads assigned partitions; one thread at a time.

    ``topics`` assigns all partitions of those topics. ``config`` takes Kafka's consumer settings with
    underscores.
    """

    def __init__(
        self, bootstrap_servers: str | Sequence[str], topics: Iterable[str] = (), **config: Any
    ) -> None:
        raise NotImplementedError

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions from now on; positions of partitions that stay are kept."""
        raise NotImplementedError

    def assignment(self) -> frozenset[TopicPartition]:
        raise NotImplementedError

    def partitions_for(self, topic: str) -> tuple[int, ...]:
        """The partition numbers of ``topic``; UnknownTopicOrPartition when there is none."""
        raise NotImplementedError

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read on from ``offset``."""
        raise NotImplementedError

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Read on from the first offset kept; without arguments, on all assigned partitions."""
        raise NotImplementedError

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        raise NotImplementedError

    def position(self, topic: str, partition: int) -> int:
        """The offset of the next record that poll returns."""
        raise NotImplementedError

    def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        raise NotImplementedError

    def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The high watermark of each: one past the last offset that can be read."""
        raise NotImplementedError

    def offsets_for_times(
        self, timestamps: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first offset at or after each timestamp (ms); None when there is none."""
        raise NotImplementedError

    def poll(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Records that are there, or that come within ``timeout_ms``; at most ``max.poll.records``."""
        raise NotImplementedError

    def iterate(
        self, *, timeout_ms: float | None = None, until_end: bool = False
    ) -> Iterator[ConsumerRecord]:
        """Records one by one, in order per partition.

        Ends after ``timeout_ms`` without a record (None: never), or with ``until_end`` at the end offsets
        that the partitions have when it is called.
        """
        raise NotImplementedError

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self.iterate()

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
