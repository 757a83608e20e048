"""Brokers as Ray actors, and the cluster that ``raylog up`` starts: the only room of the broker that knows Ray.

``actor`` is the shell around a broker, ``supervisor`` brings a cluster up and down as ``up_request`` asks,
``local_ray`` and ``ray_driver`` are its side of Ray, ``places`` the nodes that brokers are pinned to, ``cluster_file``
what is written down. Called by ``cli`` alone. Begin with ``actor``.
"""
