"""api.auth."""
