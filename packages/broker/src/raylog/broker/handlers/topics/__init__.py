"""The APIs about topics: Metadata, DescribeTopicPartitions, CreateTopics, DeleteTopics, CreatePartitions.

One file per API. Called by the table in ``handlers``. Begin with ``metadata``.
"""
