"""When a batch leaves, decided from jobs and time alone.

Start with batcher.py. May import nothing else of workers; does no I/O.
"""
