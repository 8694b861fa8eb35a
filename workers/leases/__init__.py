"""The worker's session with Redis: claim, renew, settle, release and sweep, over a connection.

Start with manager.py. May import models, batching and jobs. Does not use processes or HTTP.
"""
