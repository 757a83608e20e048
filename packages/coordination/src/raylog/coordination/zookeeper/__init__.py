"""ZooKeeper: the store over kazoo, who is let in, and the embedded server.

``store`` carries out the port's contract with ``reads``, ``watches``, ``restart``, ``errors`` and ``auth``; kazoo is
imported here and nowhere else. ``embedded`` owns a server process (``server`` says how it is started), ``credentials``
are for both. Called by whatever opens a store: launch and cli of the broker, the client's groups. Begin with ``store``.
"""
