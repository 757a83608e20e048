"""The Kafka APIs, one file each; :data:`TABLE` is the whole list."""
