"""api.routes.jobs."""
