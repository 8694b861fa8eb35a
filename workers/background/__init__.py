"""workers.background."""
