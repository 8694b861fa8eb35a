"""`headrace jobs` and `headrace cancel`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Final

import typer

from headrace.cli.jobs.watch import progress_text
from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.inputs import given_ids

if TYPE_CHECKING:
    from headrace.client.models import Job

#: Number of ids in one request.
IDS_AT_ONCE: Final = 500
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Status(StrEnum):
    """The status of a job."""

    QUEUED = "queued"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


def since(text: str) -> datetime:
    """Parse a time: RFC 3339, or how long ago (`90s`, `15m`, `2h`, `3d`).

    Raises:
        typer.BadParameter: the text is neither.
    """
    ago = re.fullmatch(r"(\d+)([smhd])", text)
    try:
        if ago:
            seconds = int(ago[1]) * _UNITS_S[ago[2]]
            return datetime.now(UTC) - timedelta(seconds=seconds)
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text}: not a time; give one such as 2026-11-21T08:00:00Z, or 90s, 15m, 2h, 3d ago"
        ) from None


def list_jobs(
    url: str | None,
    *,
    model: str | None,
    statuses: Sequence[Status],
    since: datetime | None,
    limit: int,
    as_json: bool,
) -> None:
    """Print the newest jobs."""
    from headrace import Client

    values = [status.value for status in statuses] or None
    with Client(url) as client:
        jobs = client.jobs(model=model, status=values, since=since, limit=limit or None)
        _show(islice(jobs, limit or None), as_json=as_json)


def show_jobs(url: str | None, ids: Sequence[str], *, as_json: bool) -> ExitCode:
    """Print the jobs with these ids, in this order."""
    from headrace import Client

    code = ExitCode.DONE
    with Client(url) as client:
        for some in _chunks(given_ids(ids)):
            found = client.status(some)
            known = [job for job in found if job is not None]
            if known:
                _show(known, as_json=as_json)
            for job_id, job in zip(some, found, strict=True):
                if job is None:
                    output.message_unknown(job_id)
                    code = ExitCode.UNKNOWN_ID
    return code


def cancel_jobs(url: str | None, ids: Sequence[str], *, as_json: bool) -> ExitCode:
    """Cancel jobs and print the outcome of each."""
    from headrace import Client

    code = ExitCode.DONE
    with Client(url) as client:
        for some in _chunks(given_ids(ids)):
            for done in client.cancel(some):
                if as_json:
                    output.json_line(done)
                elif done.outcome != "unknown":
                    output.line(f"{done.id}  {_OUTCOMES[done.outcome].format(status=done.status)}")
                code = max(code, _exit_code(done.id, done.outcome, done.status))
    return code


_OUTCOMES: Final = {
    "removed": "cancelled",
    "asked": "running; its result will be discarded",
    "ended": "already {status}",
}


def _exit_code(job_id: str, outcome: str, status: str | None) -> ExitCode:
    if outcome == "unknown":
        output.message_unknown(job_id)
        return ExitCode.UNKNOWN_ID
    # Cancelling a cancelled job is not a failure.
    too_late = outcome == "ended" and status != Status.CANCELLED
    return ExitCode.FAILED if too_late else ExitCode.DONE


def _show(jobs: Iterable[Job], *, as_json: bool) -> None:
    if as_json:
        for job in jobs:
            output.json_line(job)
        return
    rows = [_row(job) for job in jobs]
    if rows:
        output.table(("ID", "MODEL", "STATUS", "CREATED", ">TOOK", ""), rows)
    else:
        output.message("no jobs")


def _row(job: Job) -> tuple[str, ...]:
    took = output.milliseconds(job.timings.get("total") if job.timings else None)
    return (job.id, job.model, job.status, output.ago(job.created_at), took, _note(job))


def _note(job: Job) -> str:
    if job.error is not None:
        return output.short_line(f"{job.error.type}: {job.error.message}")
    if job.progress is not None:
        return progress_text(job.progress)
    if job.waiting_for:
        return f"no {job.waiting_for} of the model is loaded"
    return f"place {job.queue_position:,}" if job.queue_position else ""


def _chunks(ids: Iterator[str]) -> Iterator[list[str]]:
    while some := list(islice(ids, IDS_AT_ONCE)):
        yield some
