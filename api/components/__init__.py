"""Parts built once per process: model status, files, the limit of streams, the expiry task.

Each module is one part. May import services and headrace.
"""
