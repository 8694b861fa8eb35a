"""A browser for the console's pages."""

from tests.harness.http.browser import chromium

__all__ = ["chromium"]
