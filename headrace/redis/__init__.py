"""Everything that knows redis-py: connections, keys, fields, the clock and the scripts.

Start with keys.py and connection.py. May import errors.
"""
