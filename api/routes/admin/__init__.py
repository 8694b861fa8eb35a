"""Endpoints for operators: queues, dead letters, models, runs."""
