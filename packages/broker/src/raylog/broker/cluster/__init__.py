"""The broker's place in the cluster: its membership, the controller that it may run, and the handlers' ports to both.

``membership`` registers and keeps the lease, ``liveness`` watches other brokers, ``draining`` gives leaderships away
before a stop. ``controller_runtime`` is the shell around the controller, with ``controller_calls`` and
``controller_sender``; ``ports`` ends at it. Called by ``parts`` alone. Begin with ``membership``.
"""
