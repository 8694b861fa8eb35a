"""Which batch runs next on which device of a worker, and which jobs run alone.

Start with dispatcher.py. Does no I/O. May import models, replicas, batching and jobs.
"""
