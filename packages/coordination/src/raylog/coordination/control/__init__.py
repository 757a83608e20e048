"""◆ What the controller tells brokers and what they ask of it, and the rules by which partitions get leaders and
replicas.

``peer_control`` has the controller's messages, ``proposals`` the brokers', ``codec`` the bytes of both. ``leadership``,
``placement`` and ``reassignment`` are pure functions from states to states. Called by ``controller`` and by brokers.
Begin with ``peer_control``.
"""
