"""The batching Celery worker: claim, batch, isolate, settle; one consumer thread per process."""
