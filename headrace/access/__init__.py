"""API keys: their scopes and limits, their records in Redis; and who changed what.

Start with api_key.py. May import redis and errors.
"""
