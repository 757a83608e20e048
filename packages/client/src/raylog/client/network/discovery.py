"""Finding a cluster that nobody named: on the Ray cluster that this process is connected to, else on this machine.

A process that has not loaded Ray is in no Ray cluster, so a program that only consumes does not load it here.
"""

from __future__ import annotations

import sys

from raylog.client.network import registry
from raylog.client.network.registry import KnownCluster


def only_cluster() -> KnownCluster:
    """The brokers on this process's Ray cluster, else the only cluster that ``raylog up`` started on this machine.

    BrokerNotAvailable, with what to do, when there is none or no single one.
    """
    if "ray" in sys.modules:
        from raylog.client.network import ray_brokers  # noqa: PLC0415 (it loads Ray)

        if ray_brokers.has_brokers():
            return ray_brokers.cluster_on_ray(None)
    return registry.only_running_cluster()


def zookeeper_auth(connect: str) -> str:
    """The credentials for the ZooKeeper at ``connect``, as a cluster on this machine or on this process's Ray cluster
    knows them; "" when none does, or it asks for none.
    """
    found = registry.zookeeper_auth(connect)
    if not found and "ray" in sys.modules:
        from raylog.client.network import ray_brokers  # noqa: PLC0415 (it loads Ray)

        found = ray_brokers.zookeeper_auth(connect)
    return found
