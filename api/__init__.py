"""The HTTP API: jobs into Redis, records out. Stateless; imports no torch and no Celery."""
