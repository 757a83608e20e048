"""The MetadataStore port: a small tree of versioned values with sessions, as ZooKeeper offers it, and its form in
memory.

``port`` is the contract, with its operations and errors; ``memory`` keeps it in one process (``memory_tree``).
``node_json`` reads the JSON of nodes, ``unreadable`` skips what cannot be understood and tells of it once, ``trees``
deletes subtrees. Called by every room that keeps something in the store. Begin with ``port``.
"""
