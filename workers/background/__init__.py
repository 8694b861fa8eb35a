"""The background worker: a second Celery worker, for pipelines and webhooks.

Start with app.py. May import everything else in workers.
"""
