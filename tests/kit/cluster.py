"""Whole clusters in one process: real sockets, real files, a metadata store in memory, no Ray."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from raylog.broker.broker import Broker

__all__ = ["InProcessCluster"]


class InProcessCluster:
    """``brokers`` brokers over one metadata store, on free loopback ports, with their logs below ``root``.

    with InProcessCluster(tmp_path, brokers=3) as cluster:
        cluster.create_topic("t", partitions=6)
        client = connect(cluster.bootstrap_servers)
    """

    def __init__(self, root: Path, *, brokers: int = 1, config: Mapping[str, str] | None = None) -> None:
        self.brokers: dict[int, Broker] = {}
        raise NotImplementedError

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,host:port`` of all brokers."""
        raise NotImplementedError

    def create_topic(
        self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic by the controller and wait until every broker knows it."""
        raise NotImplementedError

    def leader(self, topic: str, partition: int) -> Broker:
        """The broker that leads the partition."""
        raise NotImplementedError

    def restart(self, broker_id: int, *, clean: bool = True) -> Broker:
        """Stop a broker and start it again on its directory and port."""
        raise NotImplementedError
