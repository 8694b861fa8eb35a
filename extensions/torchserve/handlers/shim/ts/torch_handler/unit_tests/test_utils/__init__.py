"""Helpers for the tests of handlers."""
