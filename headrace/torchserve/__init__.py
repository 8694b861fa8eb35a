"""TorchServe's file formats, as typed values: its configuration, model settings, keys and logs.

Start with config.py. Nothing here starts a process or talks to Redis. May import config, jobs and
errors.
"""
