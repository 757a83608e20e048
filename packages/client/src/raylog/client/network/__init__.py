"""Connections to brokers, and what is known of the cluster.

``connection`` is one connection and never blocks, ``pool`` all of them behind one selector, ``network`` a pool that
knows its cluster (``metadata`` ◆, ``topic_ids`` ◆); ``resolver`` looks hosts up, ``discovery`` finds a cluster
(``registry`` on this machine, ``ray_brokers`` on Ray), ``guards`` refuse a client after a fork. Called by requests,
produce, fetch, and who connects. Begin with ``network``.
"""
