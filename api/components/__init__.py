"""api.components."""
