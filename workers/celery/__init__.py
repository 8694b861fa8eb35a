"""Celery's side of a worker: its app and step, configuration, task events, remote control, Flower.

Start with app.py. May import everything in workers but background.
"""
