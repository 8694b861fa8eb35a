"""Webhooks: which endpoints are allowed, the signature, and the task of the background worker.

Start with endpoint.py. May import jobs, redis and errors.
"""
