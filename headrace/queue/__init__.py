"""The queue as API processes use it: submit, read, wait, watch, list and cancel (asyncio).

Start with job_queue.py. May import observability, payloads, config, access, jobs and redis.
"""
