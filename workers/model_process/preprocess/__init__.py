"""Runs a handler's `preprocess` in threads or in processes of its own.

Start with pool.py. May import what model_process may.
"""
