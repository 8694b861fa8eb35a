"""workers.celery."""
