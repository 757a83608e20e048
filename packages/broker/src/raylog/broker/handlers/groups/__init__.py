"""The APIs about consumer groups: finding the coordinator, membership, committed offsets, listing and deleting.

One file per API; ``group_members`` and ``group_offsets`` are what several share. All end at the port
``handlers.group_port``. Called by the table in ``handlers``. Begin with ``join_group``.
"""
