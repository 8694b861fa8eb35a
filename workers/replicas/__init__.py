"""A model process seen from the worker: starts it, sends batches, reads results, kills it.

Start with replica.py. May import protocol and jobs.
"""
