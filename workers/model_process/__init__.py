"""The model process: owns the device and runs the handler's verbs.

Start with __main__.py, then executor.py. May import protocol and handlers; never Celery, Redis or
another room of workers.
"""
