"""Offline runs: `headrace run` against a Celery group, Ray Data and a DataLoader."""
