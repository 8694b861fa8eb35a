"""Batches over HTTP by OpenAI's conventions: files of requests that a runner executes.

Start with runner.py, then execution.py. May import headrace.runs and what is below it, and this
extension's schema.
"""
