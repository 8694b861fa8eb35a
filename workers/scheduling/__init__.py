"""workers.scheduling."""
