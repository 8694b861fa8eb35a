"""Webhook delivery: sends, retries, throttles and logs the requests of webhooks.

Start with delivery.py.
"""
