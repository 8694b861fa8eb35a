"""The scripts in webhooks/: what each call is sent, and what it replies."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.redis.scripts import Arg, Command, script


def save(
    job_id: str,
    delivery_id: str,
    *,
    old: bytes,
    new: bytes,
    ttl_s: int,
    delay_us: int | None,
    task: bytes,
    body: bytes | None,
    counter: str,
    forgotten: Iterable[str],
) -> Command:
    """Save a delivery; the reply is [1], or [0, its text] if another process has changed it.

    Args:
        job_id: the job.
        delivery_id: the delivery.
        old: its text as it was read; empty for a new one.
        new: its new text.
        ttl_s: for how long the job's deliveries are kept.
        delay_us: after how long it is tried again; None for never.
        task: the background task that tries it.
        body: what it sends; empty for the same as before, None if it is not needed any more.
        counter: the counter that grows by one; "" for none.
        forgotten: deliveries of the job to delete.
    """
    due: Arg = "" if delay_us is None else delay_us
    kept = b"-" if body is None else body
    return script("webhooks/save").call(
        [], job_id, delivery_id, old, new, ttl_s, due, task, kept, counter, *forgotten
    )


def due(limit: int) -> Command:
    """Send the tasks of up to `limit` deliveries that are due; the reply is [how many]."""
    return script("webhooks/due").call([], limit)
