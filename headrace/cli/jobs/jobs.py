"""`headrace jobs`, `watch`, `cancel`, `retry` and `discard`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer

from headrace import errors
from headrace.cli.shared import options, output
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.inputs import given_ids
from headrace.cli.shared.options import argument, client_of, option, parsed_seconds
from headrace.text import ago, count, milliseconds

if TYPE_CHECKING:
    from headrace import Client
    from headrace.client import JobEvent, Progress
    from headrace.client.models import Job
    from headrace.schema.operation import FailuresOfGroup

#: The value of `--group` that lists groups.
BY_ERROR: Final = "error"
#: The options of `headrace jobs` that a list of groups has.
_SEARCHED: Final = ("model", "since", "error", "group")
_FAILURE_COLUMNS: Final = (">COUNT", "MODEL", "ERROR", "WHERE", "FIRST", "LAST", "GROUP", "MESSAGE")
MESSAGE_MAX_CHARS: Final = 100
#: The most groups that the API lists.
GROUPS_MAX: Final = 1000
#: As in the API. A job whose id looks so is retried by `Client.retry`.
_GROUP_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\.[0-9a-f]{12}")
_LEFT_REASONS: Final = {
    "gone": "deleted or retried meanwhile",
    "alive": "not retried: its message is still in a list",
    "no-message": "not retried: its message is no longer kept",
    "elsewhere": "not retried: the queue of its version is unknown",
}


def list_failures(
    client: Client, search: Mapping[str, Any], limit: int, *, as_json: bool
) -> ExitCode:
    """Print why jobs failed, a line for each reason."""
    others = [name for name, value in search.items() if value and name not in _SEARCHED]
    if others:
        raise typer.BadParameter(f"--group {BY_ERROR} cannot be combined with --{others[0]}")
    groups = client.failures(
        search["model"], since=search["since"], error=search["error"], limit=limit or None
    )
    output.listing(groups, _FAILURE_COLUMNS, _failure_row, as_json=as_json, empty="no failures")
    return ExitCode.DONE


def retry(
    names: list[str] = argument(
        "ID|GROUP", "Ids of failed jobs, or groups from `headrace jobs --group error`.", ...
    ),
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Retry failed jobs, alone or by group; each job keeps its id and its input."""
    code = ExitCode.DONE
    with client_of(url) as client:
        for group in names:
            if not _GROUP_NAME.fullmatch(group):
                code = max(code, _retry_job(client, group, as_json=as_json))
                continue
            done = client.retry_failures(group)
            value = {"group": group, "retried": done.retried, "left": done.left}
            output.item(value, f"{group}  {done.retried:,} retried", as_json=as_json)
            for job_id, reason in done.left.items():
                output.message(f"{job_id}: {_LEFT_REASONS.get(reason, reason)}")
                code = ExitCode.FAILED
    raise typer.Exit(code)


def _retry_job(client: Client, job_id: str, *, as_json: bool) -> ExitCode:
    try:
        client.retry(job_id)
    except errors.JobNotFound:
        return output.unknown_job(job_id)
    except errors.Conflict as error:
        output.message(error.message)
        return ExitCode.FAILED
    output.item({"id": job_id, "retried": 1}, f"{job_id}  retried", as_json=as_json)
    return ExitCode.DONE


def discard(
    groups: list[str] = argument(
        "GROUP", "Names of groups, from `headrace jobs --group error`.", ...
    ),
    yes: options.Yes = False,
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Let all failures of a group go, with their dead letters; the jobs stay failed."""
    with client_of(url) as client:
        known = {one.group: one for one in client.failures(limit=GROUPS_MAX)}
        for name in groups:
            if name not in known:
                raise errors.InvalidRequest(
                    f"there is no group of failures {name[:64]!r}",
                    hint="`headrace jobs --group error` lists the groups",
                )
        found = [known[name] for name in dict.fromkeys(groups)]
        jobs = sum(group.count for group in found)
        output.confirm(lambda: f"discard {count(jobs, 'failure')}?", yes=yes)
        for group in found:
            gone = client.discard_failures(group)
            value = {"group": group.group, "discarded": gone}
            output.item(value, f"{group.group}  {gone:,} discarded", as_json=as_json)


def _failure_row(group: FailuresOfGroup) -> tuple[str, ...]:
    return (
        f"{group.count:,}",
        group.model,
        group.exception or group.type,
        group.where or "",
        ago(group.first_at),
        ago(group.last_at),
        group.group,
        output.short_line(group.message)[:MESSAGE_MAX_CHARS],
    )


#: Number of ids in one request.
IDS_AT_ONCE: Final = 500
_COLUMNS: Final = ("ID", "MODEL", "STATUS", "CREATED", ">TOOK", "")
_TRACED_COLUMNS: Final = (*_COLUMNS[:-1], "TRACE", "")
_OUTCOMES: Final = {
    "removed": "cancelled",
    "asked": "running; its result will be discarded",
    "ended": "already {status}",
}


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
    """Parse RFC 3339, or how long ago (`90s`, `15m`, `2h`, `3d`); raise BadParameter if neither."""
    try:
        ago_s = parsed_seconds(text)
        if ago_s is not None:
            return datetime.now(UTC) - timedelta(seconds=ago_s)
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text}: not a time; give one such as 2026-11-21T08:00:00Z, or 90s, 15m, 2h, 3d ago"
        ) from None


def jobs(
    ids: list[str] | None = argument(
        "ID",
        "Job ids; - reads ids from standard input (default: the newest jobs).",
    ),
    model: str | None = option(
        "--model MODEL",
        "Only jobs of this model (default: all).",
        autocompletion=options.complete_model,
    ),
    status: list[Status] | None = option(
        "--status STATUS",
        "Only jobs with this status: queued, scheduled, running, succeeded, failed, expired or "
        "cancelled; repeatable (default: any).",
    ),
    after: datetime | None = option(
        "--since TIME",
        "Only jobs created since TIME: 2026-11-21T08:00:00Z, or 90s, 15m, 2h, 3d ago.",
        parser=since,
    ),
    before: datetime | None = option(
        "--until TIME", "Only jobs created before TIME.", parser=since
    ),
    error: str | None = option(
        "--error TEXT",
        "Only failed jobs with TEXT in their error: code, message, exception or line.",
    ),
    metadata: list[str] | None = option(
        "--metadata NAME=VALUE", "Only jobs whose metadata has this member; repeatable."
    ),
    key: str | None = option("--key ID", "Only jobs of the API key with this id."),
    group: str | None = option(
        "--group NAME",
        "error: list why jobs failed, with a count for each reason; the name of such a group: only "
        "its jobs.",
    ),
    limit: options.Limit = options.LIMIT,
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """List or search jobs, newest first, or show the jobs with these ids."""
    search: dict[str, Any] = {
        "model": model,
        "status": [one.value for one in status or ()] or None,
        "since": after,
        "until": before,
        "error": error,
        "metadata": dict(map(_member, metadata or ())) or None,
        "key": key,
        "group": group,
    }
    if ids and any(search.values()):
        raise typer.BadParameter("ids cannot be combined with an option that searches")
    with client_of(url) as client:
        if ids:
            raise typer.Exit(_show_jobs(client, ids, as_json=as_json))
        if group == BY_ERROR:
            raise typer.Exit(list_failures(client, search, limit, as_json=as_json))
        newest = client.jobs(**search, limit=limit or None)
        found = islice(newest, limit or None)
        output.listing(found, _COLUMNS, _row, as_json=as_json, empty="no jobs")


def _member(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"--metadata: {text}: not NAME=VALUE")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value


def _show_jobs(client: Client, ids: Sequence[str], *, as_json: bool) -> ExitCode:
    code = ExitCode.DONE
    for some in _chunks(ids):
        found = client.status(some)
        known = [job for job in found if job is not None]
        if any(job.trace_id for job in known):
            output.listing(known, _TRACED_COLUMNS, _traced_row, as_json=as_json)
        elif known:
            output.listing(known, _COLUMNS, _row, as_json=as_json)
        if not as_json:
            for one in known:
                _print_traceback(one, heading=len(known) > 1)
        for job_id, job in zip(some, found, strict=True):
            if job is None:
                code = output.unknown_job(job_id)
    return code


def _print_traceback(job: Job, *, heading: bool = False) -> None:
    if job.traceback:
        output.line("")
        if heading:
            output.line(f"{job.id}:")
        output.line(output.printable(job.traceback.rstrip()))


def watch(job_id: options.JobId, as_json: options.Json = False, url: options.Url = None) -> None:
    """Print a job's events until it ends: queue position, progress, outcome."""
    code = ExitCode.FAILED
    with client_of(url) as client:
        try:
            for event in client.events(job_id):
                output.item(event, _event_line(event), as_json=as_json)
                if event.job is not None and not as_json:
                    _print_traceback(event.job)
                if event.job is not None and event.job.succeeded:
                    code = ExitCode.DONE
        except errors.JobNotFound:
            code = output.unknown_job(job_id)
    raise typer.Exit(code)


def cancel(ids: options.JobIds, as_json: options.Json = False, url: options.Url = None) -> None:
    """Cancel jobs: waiting jobs do not run, and results of running jobs are discarded."""
    code = ExitCode.DONE
    with client_of(url) as client:
        for some in _chunks(ids):
            for done in client.cancel(some):
                if done.outcome == "unknown":
                    if as_json:
                        output.json_line(done)
                    code = max(code, output.unknown_job(done.id))
                    continue
                text = _OUTCOMES.get(done.outcome, done.outcome).format(status=done.status)
                output.item(done, f"{done.id}  {text}", as_json=as_json)
                # Cancelling a cancelled job is not a failure.
                if done.outcome == "ended" and done.status != Status.CANCELLED:
                    code = max(code, ExitCode.FAILED)
    raise typer.Exit(code)


def _chunks(arguments: Sequence[str]) -> Iterator[list[str]]:
    ids = given_ids(arguments)
    while some := list(islice(ids, IDS_AT_ONCE)):
        yield some


def _row(job: Job) -> tuple[str, ...]:
    return (job.id, job.model, job.status, ago(job.created_at), _took(job), _note(job))


def _traced_row(job: Job) -> tuple[str, ...]:
    *cells, note = _row(job)
    return (*cells, job.trace_id or "", note)


def _took(job: Job) -> str:
    return milliseconds(job.timings.get("total") if job.timings else None)


def _note(job: Job) -> str:
    if job.error is not None:
        return output.short_line(f"{job.error.type}: {job.error.message}")
    if job.progress is not None:
        return progress_text(job.progress)
    return _place(job)


def _place(job: Job | JobEvent) -> str:
    if job.waiting_reason:
        return output.short_line(job.waiting_reason)
    if job.waiting_for == "load":
        return "the model is loaded on demand"
    if job.waiting_for:
        return f"no {job.waiting_for} of the model is loaded"
    return f"place {job.queue_position:,}" if job.queue_position else ""


def _event_line(event: JobEvent) -> str:
    name, note = event.name, _event_note(event)
    if event.job is not None:
        error = event.job.error
        name = event.job.status
        failure = "" if error is None else output.short_line(f"{error.type}: {error.message}")
        note = failure or _took(event.job)
    return f"{name:<9}  {note}".rstrip()


def _event_note(event: JobEvent) -> str:
    if event.progress is not None:
        return progress_text(event.progress)
    if event.name == "queued":
        return _place(event)
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
