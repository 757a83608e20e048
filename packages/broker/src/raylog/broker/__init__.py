"""The broker: segmented logs, the Kafka socket server and the Ray actor around them."""
