"""The segmented log in Kafka's file formats. It knows batches and ids, and nothing of replicas or requests."""
