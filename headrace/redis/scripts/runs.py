"""The script in runs/: what its call is sent, and what it replies."""

from __future__ import annotations

from headrace.redis.scripts import Command, script


def save_run_status(
    run_id: str, status_json: bytes, *, begun: bool, ttl_s: int, kept: int, owner: str
) -> Command:
    """Save a run's status; replies [1 if its end was requested, -1 if it is another key's].

    Args:
        run_id: the run.
        status_json: what it reports of itself.
        begun: a process has just started it.
        ttl_s: for how long the status is kept.
        kept: how many runs are kept.
        owner: the API key that reports.
    """
    return script("runs/save_status").call([], run_id, status_json, int(begun), ttl_s, kept, owner)
