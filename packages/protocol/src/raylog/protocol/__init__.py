"""Kafka's record batches, messages, errors and settings, without any I/O."""
