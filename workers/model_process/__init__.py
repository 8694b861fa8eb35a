"""The process that owns the device and runs the handler, seen from inside.

Start with __main__.py, then executor.py. May import protocol and handlers; never Celery, Redis or
another room of workers.
"""
