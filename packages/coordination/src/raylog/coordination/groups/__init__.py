"""Consumer groups in the store: committed offsets of all groups, and the members of groups of actors.

``offsets`` is the one registry of offsets (``offset_store`` is its port, ``offset_nodes`` its nodes). ``group`` ◆
decides for a member, by ``assignors``; ``registry``, ``claims``, ``view`` and ``instances`` carry that out. ``kinds``,
``nodes`` and ``deletion`` are about whole groups. Called by the broker's groups and the client's. Begin with
``offsets`` or ``group``.
"""
