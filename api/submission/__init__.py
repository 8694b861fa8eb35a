"""From a validated request to a queued job, and waiting for its end.

Start with submit.py and job_request.py. May import auth, http and services.
"""
