"""Logs, redaction, tracing, and the counters that workers report.

Start with logs.py. May import config, jobs, redis and errors.
"""
