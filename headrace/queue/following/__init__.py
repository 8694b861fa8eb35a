"""Follows jobs that run: one subscription for ends, events and pieces.

Start with subscription.py. May import what queue may.
"""
