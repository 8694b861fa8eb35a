"""The workers: Celery workers that claim jobs, run models and settle results.

A job goes through consumer, leases, models, batching, scheduling, replicas and model_process, and
back. Start with consumer/loop.py. direct.py runs a model without a queue. May import handlers
and headrace; never api.
"""
