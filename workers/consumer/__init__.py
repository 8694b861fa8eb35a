"""The loop of a worker: wakes, claims, dispatches, collects and settles for all models.

Start with loop.py; one thread runs it. May import lifecycle, canvas, leases, observability,
scheduling, models, replicas, protocol, jobs and threads.
"""
