"""Cluster metadata: the ZooKeeper registries, the controller and its decisions."""
