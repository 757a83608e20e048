"""Ray Data: what ``raylog.client.data`` hands to it.

``plan`` ◆ cuts a dataset into pieces and chooses nodes, ``source`` reads one, ``sink`` writes one, ``stream`` is tables
without an end. Called by ``data`` alone. Begin with ``plan``.
"""
