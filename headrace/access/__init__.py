"""API keys: their scopes and limits, and where they are kept in Redis.

Start with api_key.py. May import redis and errors.
"""
