"""Celery's side of a worker: bootstep, configuration, task events, remote control, Flower.

Start with bootstep.py. May import everything in workers but background.
"""
