"""Handlers that come with Headrace, and how any handler is found; for model processes only."""
