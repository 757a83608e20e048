"""The way in: a cluster found through Ray, through its data directory, or by its addresses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from raylog.client.admin import Admin
from raylog.client.arguments import arguments as given
from raylog.client.config.client import ACKS, server_text
from raylog.client.config.compression import COMPRESSION_TYPE
from raylog.client.consumer import Consumer
from raylog.client.network.discovery import only_cluster
from raylog.client.network.ray_brokers import cluster_on_ray, join_ray
from raylog.client.network.registry import cluster_in
from raylog.client.producer import Producer
from raylog.coordination.host.clocks import wall_ms
from raylog.coordination.zookeeper.credentials import read_credentials
from raylog.protocol.batches.compression import Codec
from raylog.protocol.errors import BrokerNotAvailable, InvalidRequest, LeaderNotAvailable, UnknownTopicOrPartition
from raylog.protocol.records import Record, encode_batch

_ACKS = {"0": 0, "1": 1, "all": -1, "-1": -1}


@dataclass(frozen=True, slots=True)
class RemoteMethod:
    """A broker's method: ``.remote(…)`` calls it and answers a Ray object ref."""

    remote: Callable[..., Any]


class BrokerHandle:
    """One broker actor, for the convenient way in; for much data use a Producer and a Consumer.

    ``produce.remote(topic, partition, records, acks="all", compression="none")`` encodes the records as one
    batch, here and not in the broker → (first, last) offset. ``fetch.remote(topic, partition, offset=0,
    max_bytes=1 << 20)`` → Batches, which unpack to (records, high watermark) and are decoded here.
    ``describe.remote()`` → what it is and where.
    """

    def __init__(self, broker_id: int, actor: Any) -> None:
        self.broker_id = broker_id
        self.produce = RemoteMethod(self._produce)
        self.fetch = RemoteMethod(self._fetch)
        self.describe = RemoteMethod(actor.describe.remote)
        self._actor = actor

    def __repr__(self) -> str:
        return f"BrokerHandle({self.broker_id})"

    def _produce(
        self,
        topic: str,
        partition: int,
        records: Sequence[Record],
        acks: str | int = "all",
        compression: str = "none",
    ) -> Any:
        [tp] = given.to_partitions([(topic, partition)])
        chosen = _ACKS[ACKS.checked(str(acks))]
        codec = Codec.from_name(COMPRESSION_TYPE.checked(str(compression)))
        now_ms = wall_ms()
        timed = [record if record.timestamp >= 0 else replace(record, timestamp=now_ms) for record in _records(records)]
        return self._actor.produce.remote(*tp, encode_batch(timed, codec=codec), chosen)

    def _fetch(self, topic: str, partition: int, offset: int = 0, max_bytes: int = 1 << 20) -> Any:
        [tp] = given.to_partitions([(topic, partition)])
        return self._actor.fetch.remote(*tp, given.offset("offset", offset), given.number("max_bytes", max_bytes, 1))


def _records(records: Sequence[Record]) -> list[Record]:
    """Records of one batch. Raises InvalidRequest."""
    found = given.several("records", records)
    if not found or not all(isinstance(record, Record) for record in found):
        raise InvalidRequest("records: give a list of Record, at least one")
    return found


class Cluster:
    """A cluster's addresses, and makers of clients for it. Raises InvalidConfig, InvalidRequest."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        ray_address: str | None = None,
        ray_token_path: str = "",
        namespace: str | None = None,
        actors: Mapping[int, str] | None = None,
        zookeeper_auth_path: str = "",
    ) -> None:
        self.bootstrap_servers = server_text(bootstrap_servers)
        self.ray_address = None if ray_address is None else given.text("ray_address", ray_address)
        """Of the Ray cluster that the brokers run on; None when it isn't known."""
        self.ray_token_path = given.text("ray_token_path", ray_token_path, empty=True)
        """The file with the token that this Ray cluster asks for; empty when the environment knows."""
        self._namespace = None if namespace is None else given.text("namespace", namespace)
        self._actors = {
            given.number("actors", broker_id): given.text("actors", name)
            for broker_id, name in given.mapping("actors", {} if actors is None else actors).items()
        }
        self._zookeeper_auth_path = given.text("zookeeper_auth_path", zookeeper_auth_path, empty=True)

    def __repr__(self) -> str:
        return f"Cluster({self.bootstrap_servers!r})"

    def admin(self, **config: Any) -> Admin:
        """An admin client; ``config`` as :class:`Admin` takes it."""
        return Admin(self.bootstrap_servers, **config)

    def producer(self, **config: Any) -> Producer:
        """A producer; ``config`` as :class:`Producer` takes it."""
        return Producer(self.bootstrap_servers, **config)

    def consumer(self, *topics: str | re.Pattern[str], **config: Any) -> Consumer:
        """A consumer of all partitions of ``topics``, or with ``group_id`` of its share of them; ``config`` as
        :class:`Consumer` takes it."""
        if self._zookeeper_auth_path and {"group_id", "group.id"} & config.keys():
            config.setdefault("zookeeper_auth", read_credentials(Path(self._zookeeper_auth_path)))
        return Consumer(self.bootstrap_servers, topics or None, **config)

    def join_ray(self) -> None:
        """Connect this process to the cluster's Ray, unless it is connected already. BrokerNotAvailable: it can't."""
        join_ray(self.ray_address, self.ray_token_path)

    def broker(self, broker_id: int) -> BrokerHandle:
        """A handle to one broker's actor, through Ray. BrokerNotAvailable when Ray doesn't know it."""
        given.number("broker_id", broker_id)
        if self._namespace is None:
            raise BrokerNotAvailable(
                f"broker {broker_id}: only addresses are known of this cluster; connect() through Ray or by data_dir"
            )
        self.join_ray()
        name = self._actors.get(broker_id, f"broker-{broker_id}")
        try:
            return BrokerHandle(broker_id, ray.get_actor(name, namespace=self._namespace))
        except ValueError as error:
            raise BrokerNotAvailable(
                f"broker {broker_id}: no actor {name!r} in Ray namespace {self._namespace!r}"
            ) from error

    def leader(self, topic: str, partition: int) -> BrokerHandle:
        """A handle to the broker that leads the partition now; after NotLeaderOrFollower ask again.

        Raises UnknownTopicOrPartition, LeaderNotAvailable, and what :meth:`broker` raises.
        """
        given.to_partitions([(topic, partition)])
        with self.admin() as admin:
            described = admin.describe_topic(topic).partitions
        found: dict[int, int] = {state.partition: state.leader for state in described}
        if partition not in found:
            raise UnknownTopicOrPartition(f"{topic}-{partition}: {topic} has {len(found)} partitions")
        if found[partition] < 0:
            raise LeaderNotAvailable(f"{topic}-{partition}: nobody leads it at the moment; its broker is down")
        return self.broker(found[partition])


def connect(
    bootstrap_servers: str | Sequence[str] | None = None,
    *,
    data_dir: str | Path | None = None,
    address: str | None = None,
) -> Cluster:
    """The cluster at ``bootstrap_servers``, of ``data_dir``, or on the Ray cluster at ``address``.

    Without arguments: the brokers on the Ray cluster that this process is connected to, else the only cluster that
    ``raylog up`` started on this machine. BrokerNotAvailable, with what to do, when there is none or no single one;
    InvalidConfig and InvalidRequest for what an argument cannot be.
    """
    if bootstrap_servers is not None:
        return Cluster(bootstrap_servers)
    if data_dir is not None:
        found = cluster_in(data_dir if isinstance(data_dir, Path) else Path(given.text("data_dir", data_dir)))
    elif address is not None:
        join_ray(given.text("address", address))
        found = cluster_on_ray(address)
    else:
        found = only_cluster()
    return Cluster(
        found.bootstrap_servers,
        ray_address=found.ray_address,
        ray_token_path=found.ray_token_path,
        namespace=found.namespace,
        actors=found.actors,
        zookeeper_auth_path=found.zookeeper_auth_path,
    )
