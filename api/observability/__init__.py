"""The access log, spans and metrics of the API.

Start with metrics.py. May import components, http and services.
"""
