"""Partitions: a log and this broker's role in it, and the table of those that this broker keeps.

``partition`` is what handlers see: it has a log, a ``role`` and subscriptions. ``follower`` is a part of the role,
``types`` the calls' arguments; ``table`` has all of them and takes the controller's word, ``local_partitions`` carries
that out, a partition at a time. Called by ``handlers``, ``replicas`` and ``cluster``; it calls ``storage`` and
``replication``. Begin with ``partition``.
"""
