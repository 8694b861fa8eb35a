"""The message of one job."""

from __future__ import annotations

from typing import Any

from headrace.jobs import message_writer
from headrace.jobs.options import DEFAULT_OPTIONS, JobOptions


def write_message(
    job_id: str,
    model: str,
    queue: str,
    input_json: bytes,
    options: JobOptions = DEFAULT_OPTIONS,
    *,
    timeout_s: float | None = None,
    quiet: bool = False,
    **own: Any,
) -> bytes:
    """Return a task message; `own` has what only this job has."""
    blank = message_writer.blank_message(model, queue, options, timeout_s=timeout_s, quiet=quiet)
    return message_writer.write_message(blank, job_id, input_json, **own)
