"""Starts child processes, restarts them, reads their output, and ends them in order.

Start with supervisor.py. Independent of the rest of Headrace but for its log output.
"""
