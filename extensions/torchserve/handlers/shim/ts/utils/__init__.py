"""Helpers of handlers."""
