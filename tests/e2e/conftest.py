"""A browser for the pages of whole systems."""

from tests.harness.http.browser import chromium

__all__ = ["chromium"]
