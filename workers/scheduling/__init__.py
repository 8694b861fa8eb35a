"""Which model's batch runs next on which device, by start-time fair queueing.

Start with dispatcher.py. May import models, replicas and jobs.
"""
