"""Topics as Spark DataFrames, through RayDP on the cluster of the brokers."""
