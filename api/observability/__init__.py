"""api.observability."""
