"""Every node in the metadata store and the codec of its value.
 Paths and values are those of Kafka's ZooKeeper era (D6), so that tools of that time read them: JSON with
Kafka's field names. What is raylog's alone lives below /raylog. Unknown fields are ignored, so that newer
releases may add some. A value that cannot be read raises CorruptMetadata, which names the node.
"""
# Bodies follow; see DESIGN "In ZooKeeper" for the table.
