"""Datatypes, requests and results of v2 as values, and their form on the queue: the envelope.

Start with envelope.py. No numpy, no HTTP, no Redis. May import only values of the core.
"""
