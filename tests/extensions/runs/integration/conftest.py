"""The fixtures of the core's integration tests."""

from tests.integration.conftest import _api, _hasty, api, app, hasty, site

__all__ = ["_api", "_hasty", "api", "app", "hasty", "site"]
