"""`headrace result`: the outputs of jobs, to standard output or to files."""

from __future__ import annotations

import mimetypes
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from headrace import errors
from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import ExitCode, exit_code
from headrace.cli.shared.ids import given_ids
from headrace.jobs.media_types import BINARY_TYPE, image_type

if TYPE_CHECKING:
    from headrace.client import Client
    from headrace.client.models import Job

_BINARY: Final = ".bin"


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """What is asked of `headrace result`.

    Attributes:
        ids: the jobs, `-` for standard input.
        wait: wait for those that have not ended.
        timeout_s: how long, in all; None without end.
        target: a file for the result of one job, or a folder; None for standard output.
        as_json: print the job objects.
        retry_s: how long a server may be away.
    """

    ids: Sequence[str]
    wait: bool
    timeout_s: float | None
    target: Path | None
    as_json: bool
    retry_s: float


def fetch(url: str | None, what: Fetch) -> ExitCode:
    """Print or store the results of these jobs."""
    from headrace import Client

    alone = len(what.ids) == 1 and what.ids[0] != "-"
    _check_target(what, alone=alone)
    deadline = None if what.timeout_s is None else time.monotonic() + what.timeout_s
    code = ExitCode.DONE
    with Client(url, retry_s=what.retry_s) as client:
        for job_id in given_ids(what.ids):
            code = max(code, _fetch_one(client, job_id, what, deadline, alone=alone))
    return code


def _fetch_one(
    client: Client, job_id: str, what: Fetch, deadline: float | None, *, alone: bool
) -> ExitCode:
    try:
        job = _ended(client, job_id, what, deadline)
        if what.as_json:
            output.json_line(job)
        if not job.ended:
            output.say(f"{job_id}: {job.status}; wait for it with --wait")
            return ExitCode.TIMED_OUT
        if not job.succeeded:
            output.say(f"{job_id}: {output.why(job)}")
            return ExitCode.FAILED
        if not what.as_json:
            _deliver(client, job, what.target, alone=alone)
    except errors.JobNotFound:
        output.say_unknown(job_id)
        return ExitCode.UNKNOWN_ID
    except errors.WaitTimeout as error:
        output.say(f"{error.message}; it goes on: headrace result {job_id} --wait")
        return exit_code(error)
    return ExitCode.DONE


def _ended(client: Client, job_id: str, what: Fetch, deadline: float | None) -> Job:
    """The job, after its end where that is to be waited for."""
    if not what.wait:
        return client.status(job_id)
    left_s = None if deadline is None else max(deadline - time.monotonic(), 0)
    return client.wait(job_id, timeout_s=left_s)


def _deliver(client: Client, job: Job, target: Path | None, *, alone: bool) -> None:
    # A large result is not in the job object; one that is null is asked for once more in vain.
    value = client.result(job) if job.result is None else job.value
    if target is not None:
        _store(job, value, target)
    elif alone:
        print_result(value)
    else:
        output.line(f"{job.id}: {output.short(job.result, value)}")


def print_result(value: object) -> None:
    """The result of a lone job on standard output, as it is.

    Raises:
        typer.Exit: it is binary, and standard output is a terminal.
    """
    if isinstance(value, bytes):
        output.raw(value, "the result")
    elif isinstance(value, str):
        output.line(value)
    else:
        output.json_line(value)


def _store(job: Job, value: object, target: Path) -> None:
    """Write a result to a file; a reader of that file never sees half of it.

    Raises:
        errors.ConfigError: the file cannot be written.
    """
    path = target / f"{job.id}{_suffix(job, value)}" if target.is_dir() else target
    data = value if isinstance(value, bytes) else _as_text(value).encode()
    part = path.with_name(f"{path.name}.part")
    try:
        if path.exists() and not path.is_file():  # such as /dev/stdout
            path.write_bytes(data)
            return
        part.write_bytes(data)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise errors.ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else output.as_json(value) + "\n"


def _suffix(job: Job, value: object) -> str:
    if not isinstance(value, bytes):
        return ".txt" if isinstance(value, str) else ".json"
    kind = job.result.get("content_type", "") if isinstance(job.result, dict) else ""
    kind = kind.partition(";")[0]
    if kind in ("", BINARY_TYPE):
        kind = image_type(value) or BINARY_TYPE
    return mimetypes.guess_extension(kind) or _BINARY


def _check_target(what: Fetch, *, alone: bool) -> None:
    if what.target is None:
        return
    if what.as_json:
        raise typer.BadParameter("--json prints to standard output: leave out one of the two")
    if not alone and not what.target.is_dir():
        raise typer.BadParameter(
            f"{what.target}: the results of several jobs need a folder that exists",
            param_hint="--output",
        )
