"""workers.batching."""
