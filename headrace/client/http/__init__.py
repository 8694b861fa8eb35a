"""The client's HTTP: connections, proxies, retries, errors and streams of events.

Start with transport.py. May import headrace.errors and the client's models.
"""
