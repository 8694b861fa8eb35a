"""Who calls: authenticates API keys, checks scopes, limits rates.

Start with authenticator.py. May import http and components.
"""
