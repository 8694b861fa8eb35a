"""Endpoints for jobs: submit, read, list, events, webhooks, bulk."""
