"""Who is in the cluster: registration of brokers, leases, liveness of processes, and the election of the controller.

``registration`` gives a broker its incarnation, ``lease`` ◆ ends its right to serve in time, ``liveness`` hints that
another process is gone (``host_names`` looks hosts up for it), ``election`` makes one broker the controller. Called by
brokers, and by members of groups of actors. Begin with ``registration``.
"""
