"""api.routes.admin."""
