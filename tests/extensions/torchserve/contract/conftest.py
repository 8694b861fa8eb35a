"""The queue of the core's contract tests."""

from tests.contract.conftest import queue

__all__ = ["queue"]
