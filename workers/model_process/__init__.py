"""The model process: owns the device and runs the handler's verbs.

Start with __main__.py, then executor.py. May import protocol, threads and handlers; never Celery,
Redis or anything else of workers.
"""
