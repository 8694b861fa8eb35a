"""A submit request, checked; its input, stored; how long it waits; its copies for shadow versions.

Start with job_request.py. May import auth, observability, components and http.
"""
