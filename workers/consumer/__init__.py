"""workers.consumer."""
