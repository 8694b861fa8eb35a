"""`headrace watch`: prints the events of a job, one per line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace import errors
from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import ExitCode

if TYPE_CHECKING:
    from headrace.client import JobEvent, Progress


def watch(url: str | None, job_id: str, *, as_json: bool) -> ExitCode:
    """Print a job's events until it ends."""
    from headrace import Client

    code = ExitCode.FAILED
    try:
        with Client(url) as client:
            for event in client.events(job_id):
                if as_json:
                    output.json_line(event)
                else:
                    output.line(_line(event))
                if event.job is not None:
                    code = ExitCode.DONE if event.job.succeeded else ExitCode.FAILED
    except errors.JobNotFound:
        output.message_unknown(job_id)
        return ExitCode.UNKNOWN_ID
    return code


def _line(event: JobEvent) -> str:
    if event.job is not None:
        job = event.job
        took = output.milliseconds(job.timings.get("total") if job.timings else None)
        ending = f"{job.error.type}: {job.error.message}" if job.error is not None else took
        return _row(job.status, output.short_line(ending))
    return _row(event.name, _note(event))


def _note(event: JobEvent) -> str:
    if event.progress is not None:
        return progress_text(event.progress)
    if event.name == "queued":
        if event.waiting_for:
            return f"no {event.waiting_for} of the model is loaded"
        return f"place {event.queue_position:,}" if event.queue_position else ""
    if event.name == "scheduled":
        reason = output.short_line(event.error.message) if event.error is not None else ""
        due = f"until {event.due_at.astimezone():%H:%M:%S}" if event.due_at is not None else ""
        return "; ".join(filter(None, (due, reason)))
    return f"attempt {event.attempts}" if event.attempts > 1 else ""


def progress_text(progress: Progress) -> str:
    """Return a job's progress on one line."""
    share = "" if progress.fraction is None else f"{progress.fraction:.0%}"
    count = f"{progress.done:,g} of {progress.total:,g}" if progress.total else ""
    return output.short_line(", ".join(filter(None, (share, count, progress.message))))


def _row(name: str, note: str) -> str:
    return f"{name:<9}  {note}".rstrip()
