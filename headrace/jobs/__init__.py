"""A job as data: its record, options, message, ids and encoding. Does no I/O.

Start with job.py and message.py. May import redis.keys, redis.fields and errors.
"""
