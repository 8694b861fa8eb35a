"""The command `headrace torchserve`.

Start with torchserve.py. It imports what it needs when it runs.
"""
