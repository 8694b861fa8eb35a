"""The background worker: a second Celery worker, for pipelines and webhooks.

Start with app.py. May import every other room of workers.
"""
