"""Webhooks: what is told of a job's start and end to an address that its submit names.

By the Standard Webhooks scheme. What is sent, and when again, is decided in the errands worker
(`workers/background/webhooks/delivery.py`); here is what the API needs too. Knows no Celery.
"""
