"""The APIs about brokers and about who keeps and leads what: versions, cluster, log directories, elections,
reassignments.

One file per API. Called by the table in ``handlers``. Begin with ``describe_cluster``.
"""
