"""api.submission."""
