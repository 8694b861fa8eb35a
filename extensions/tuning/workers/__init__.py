"""Measures the variants of one model in a process like a model process.

Start with measured.py, which starts it. May import workers.model_process and handlers.
"""
