"""`headrace up` and the components it starts: API, workers, background worker, Redis.

Start with up.py and components.py. May import everything in headrace but cli.
"""
