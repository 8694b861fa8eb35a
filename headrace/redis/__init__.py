"""Everything that talks to Redis: clients, keys, fields, the clock and the scripts.

Start with keys.py, connection.py and scripts/__init__.py. May import errors.
"""
