"""workers.observability."""
