"""Pipelines: runs the stages of a pipeline's job as jobs of their models.

Start with orchestrator.py; leases.py holds the leases, and execution.py decides which stage comes
next, without I/O.
"""
