"""workers.jobs."""
