"""The broker: segmented logs, the Kafka socket server and the Ray actor around them."""

import raylog.protocol  # noqa: F401  (it must be the first to import kio)
