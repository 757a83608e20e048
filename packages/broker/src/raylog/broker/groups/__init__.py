"""Consumer groups of Kafka clients: the classic protocol's coordinator.

``classic`` ◆ is the state machine, ``holding`` the groups that this broker coordinates, ``offsets`` what becomes of
commits. ``coordinator`` is the handlers' port to all of it; ``listing``, ``actors`` and ``examination`` tell of groups.
Called by ``handlers`` through ``handlers.group_port``, and by ``parts``. Begin with ``coordinator``.
"""
