"""Errors of the API, as clients get them, for tests."""

from __future__ import annotations

from typing import Any

import httpx2


def problem_of(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """Return the problem in an answer, which must have this status and this code."""
    assert response.status_code == status, response.text
    problem: dict[str, Any] = response.json()
    assert problem["type"] == f"/problems/{code}"
    return problem
