"""api.routes.openai."""
