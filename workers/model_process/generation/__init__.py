"""Runs a generator: requests join and leave between two steps.

Start with continuous.py. May import what model_process may.
"""
