"""``raylog topics``, with moves of partitions.

``topics`` has the commands; ``reassign`` moves partitions as ``reassign_plan`` ◆ says, slowed by ``reassign_throttle``,
followed by ``reassign_watch``. Called by the command line alone. Begin with ``topics``.
"""
