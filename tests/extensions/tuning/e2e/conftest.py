"""A browser for the reports' pages."""

from tests.harness.http.browser import chromium

__all__ = ["chromium"]
