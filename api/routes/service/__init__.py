"""api.routes.service."""
