"""Inputs and results as values: their types, their encoding, and what JSON can hold.

Start with encoding.py. Does no I/O.
"""
