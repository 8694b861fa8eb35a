"""The background worker on a Redis that is slow to tell lengths: none is waited for."""

from __future__ import annotations

from workers.leases import notifications

notifications.WATCH_MAX_S = 0.0  # type: ignore[misc]

from workers.background.app import app  # noqa: E402 - the wait is read before

__all__ = ["app"]
