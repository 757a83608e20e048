"""Producer, consumer, admin client and the raylog command line."""
