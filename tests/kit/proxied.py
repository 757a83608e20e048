"""Brokers that everybody reaches through a proxy each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kit.cluster import InProcessCluster
from kit.proxy import FrameProxy
from kit.replicated import ReplicatedCluster

__all__ = ["behind_proxies", "proxied"]


@contextmanager
def behind_proxies(
    root: Path, *, partitions: int, config: Mapping[str, str] | None = None
) -> Iterator[tuple[ReplicatedCluster, list[FrameProxy], str]]:
    """A cluster with the topic ``t``, whose brokers everybody reaches through a proxy each; the bootstrap servers."""
    with ExitStack() as stack:
        cluster = ReplicatedCluster(root, config=config)
        proxies = [stack.enter_context(FrameProxy()) for _ in range(cluster.size)]
        for broker_id, proxy in enumerate(proxies):
            host, port = proxy.target
            listeners = {
                "listeners": f"PLAINTEXT://{host}:{port}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}",
            }
            cluster.configure(broker_id, listeners)
        stack.enter_context(cluster)
        cluster.create_topic("t", partitions=partitions)
        yield cluster, proxies, ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)


@contextmanager
def proxied(root: Path, config: Mapping[str, str] | None = None) -> Iterator[tuple[InProcessCluster, FrameProxy, str]]:
    """One broker that clients only know by the proxy's address, with a topic ``t`` of two partitions.

    It creates no topics by itself, unless ``config``, settings of the broker, says so.
    """
    with FrameProxy() as proxy:
        settings = {
            "listeners": "PLAINTEXT://{}:{}".format(*proxy.target),
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}",
            "auto.create.topics.enable": "false",
            **(config or {}),
        }
        with InProcessCluster(root, brokers=1, config=settings) as cluster:
            cluster.create_topic("t", partitions=2)
            yield cluster, proxy, f"127.0.0.1:{proxy.port}"
