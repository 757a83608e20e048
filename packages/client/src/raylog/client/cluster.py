"""The way in: a cluster found through Ray, through its data directory, or by its addresses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raylog.client.admin import Admin
from raylog.client.consumer import Consumer
from raylog.client.producer import Producer


class BrokerHandle:
    """One broker actor: ``produce.remote``, ``fetch.remote`` and ``describe.remote`` return Ray object refs.

    ``produce.remote(topic, partition, records, acks="all")`` encodes one batch in the caller → (first, last)
    offset.
    ``fetch.remote(topic, partition, offset=0, max_bytes=1 << 20)`` → Batches, which unpack to records, high
    watermark.
    """

    produce: Any
    fetch: Any
    describe: Any


class Cluster:
    """A cluster's addresses, and makers of clients for it."""

    bootstrap_servers: str

    def admin(self, **config: Any) -> Admin:
        raise NotImplementedError

    def producer(self, **config: Any) -> Producer:
        raise NotImplementedError

    def consumer(self, *topics: str, **config: Any) -> Consumer:
        raise NotImplementedError

    def broker(self, broker_id: int) -> BrokerHandle:
        """A handle to one broker's actor; BrokerNotAvailable when it isn't known to Ray."""
        raise NotImplementedError


def connect(
    bootstrap_servers: str | Sequence[str] | None = None,
    *,
    data_dir: str | Path | None = None,
    address: str | None = None,
) -> Cluster:
    """The cluster at ``bootstrap_servers``, of ``data_dir``, or on the Ray cluster at ``address``.

    Without arguments: the brokers on the Ray cluster this process is connected to, else the only cluster that
    ``raylog up`` started on this machine. BrokerNotAvailable, with what to do, when there is none or no
    single one.
    """
    raise NotImplementedError
