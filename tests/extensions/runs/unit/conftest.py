"""The fixture of the core's unit tests."""

from tests.unit.conftest import imports_are_undone

__all__ = ["imports_are_undone"]
