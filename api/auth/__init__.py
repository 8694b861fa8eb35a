"""Authenticates API keys, checks scopes and limits rates.

Start with authenticator.py. May import http.
"""
