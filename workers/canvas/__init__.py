"""Celery's canvas: sends the links, chains and chords of a job before the job is settled.

Start with notifier.py. May import leases, models, jobs and threads.
"""
