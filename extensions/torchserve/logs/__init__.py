"""TorchServe's log lines, and the files that it writes them to.

Start with lines.py. May import this extension's config.
"""
