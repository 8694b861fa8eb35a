"""API keys: their scopes and limits, and their records in Redis.

Start with api_key.py. May import redis and errors.
"""
