"""What the store holds, as values: the cluster, its topics and its groups, every znode's path and codec.

``model`` and ``group_model`` ◆ are the values, ``paths`` and ``group_paths`` ◆ the nodes; ``topic_names``,
``topic_ids`` and ``topic_patterns`` say which topic is meant; ``configs``, ``producer_ids`` and ``snapshot`` read and
write through a store. Called by all rooms above, by brokers and by clients. Begin with ``model``.
"""
