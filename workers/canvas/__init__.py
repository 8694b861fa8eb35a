"""workers.canvas."""
