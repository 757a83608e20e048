"""Consumer groups of Kafka clients: the classic protocol's coordinator."""
