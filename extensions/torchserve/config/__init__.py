"""TorchServe's file formats, as typed values: its configuration, model settings, keys and metrics.

Start with settings.py. Nothing here starts a process or talks to Redis. May import headrace.config,
headrace.jobs and headrace.errors.
"""
