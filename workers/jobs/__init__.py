"""The values of a worker: a leased job, a batch, a settlement, a claim's reply, a retry policy.

Start with leased_job.py. May import nothing else of workers; does no I/O.
"""
