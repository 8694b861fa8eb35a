"""Offline runs: from a source of inputs to a sink of results, resumable after a kill.

Start with engine/engine.py. May import client, queue, payloads, config, access, jobs, redis
and errors.
"""
