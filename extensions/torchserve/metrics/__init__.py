"""TorchServe's metrics of one process: as lines of its log, or as totals in Redis.

Start with recorder.py. The API and the workers use it. May import this extension's config and logs.
"""
