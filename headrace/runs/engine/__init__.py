"""The engine of a run: submits inputs, collects outcomes, writes rows and checkpoints.

Start with engine.py. Independent of file formats.
"""
