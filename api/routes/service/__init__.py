"""Endpoints of the service itself: health, metrics, documentation."""
