"""The admin client: topics, configs, offsets and brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from raylog.client.results import ClusterDescription, ConfigEntry, OffsetAndTimestamp, TopicDescription
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import TopicPartition

EARLIEST = -2
LATEST = -1


class NewTopic(NamedTuple):
    """A topic to create; -1 takes the broker's default. ``assignments``: partition → broker ids."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = {}
    assignments: Mapping[int, Sequence[int]] = {}


class Admin:
    """Asks the cluster about itself and changes it. Safe to use from many threads, one request at a time."""

    def __init__(self, bootstrap_servers: str | Sequence[str], **config: Any) -> None:
        raise NotImplementedError

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        *,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create one topic and return once its partitions have leaders; raises the error that fits."""
        raise NotImplementedError

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, RaylogError | None]:
        """Create several; per name, None or why it was refused."""
        raise NotImplementedError

    def delete_topics(self, names: Iterable[str]) -> dict[str, RaylogError | None]:
        raise NotImplementedError

    def list_topics(self) -> list[TopicDescription]:
        raise NotImplementedError

    def describe_topic(self, name: str) -> TopicDescription:
        """Raises UnknownTopicOrPartition."""
        raise NotImplementedError

    def describe_topic_configs(self, name: str) -> list[ConfigEntry]:
        raise NotImplementedError

    def describe_broker_configs(self, broker_id: int) -> list[ConfigEntry]:
        raise NotImplementedError

    def describe_cluster(self) -> ClusterDescription:
        raise NotImplementedError

    def list_offsets(
        self, at: Mapping[tuple[str, int], int], *, read_committed: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets at EARLIEST (-2), LATEST (-1) or a timestamp in ms, per partition."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
