"""Cluster metadata: the ZooKeeper registries, the controller and its decisions.

From below: ``host`` (this machine), ``store`` (the MetadataStore port), ``metadata`` (values and znodes), then side by
side ``zookeeper``, ``membership``, ``groups`` and ``control``, and ``controller`` on top. A room calls those below it.
Brokers and clients call this package; it calls ``protocol`` alone. Begin with ``metadata.model``.
"""
