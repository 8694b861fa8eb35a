"""The access log, spans and counters of the API.

Start with counters.py. May import components and http.
"""
