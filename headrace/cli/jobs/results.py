"""`headrace result`: writes the results of jobs to standard output or to files."""

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
from headrace.cli.shared.inputs import given_ids
from headrace.jobs.media_types import BINARY_TYPE, image_type

if TYPE_CHECKING:
    from headrace.client import Client
    from headrace.client.models import Job

_BINARY: Final = ".bin"


@dataclass(frozen=True, kw_only=True)
class ResultRequest:
    """The arguments of `headrace result`.

    Attributes:
        ids: job ids; `-` reads them from standard input.
        wait: wait for jobs that have not ended.
        timeout_s: maximum wait in total; None for no limit.
        target: a file for the result of one job, or a folder; None for standard output.
        as_json: print the job objects.
        retry_s: how long requests are retried while the server is unreachable.
    """

    ids: Sequence[str]
    wait: bool
    timeout_s: float | None
    target: Path | None
    as_json: bool
    retry_s: float


def fetch(url: str | None, request: ResultRequest) -> ExitCode:
    """Print or store the results of jobs."""
    from headrace import Client

    alone = len(request.ids) == 1 and request.ids[0] != "-"
    _check_target(request, alone=alone)
    deadline = None if request.timeout_s is None else time.monotonic() + request.timeout_s
    code = ExitCode.DONE
    with Client(url, retry_s=request.retry_s) as client:
        for job_id in given_ids(request.ids):
            code = max(code, _fetch_one(client, job_id, request, deadline, alone=alone))
    return code


def _fetch_one(
    client: Client, job_id: str, request: ResultRequest, deadline: float | None, *, alone: bool
) -> ExitCode:
    try:
        job = _ended(client, job_id, request, deadline)
        if request.as_json:
            output.json_line(job)
        if not job.ended:
            output.message(f"{job_id}: {job.status}; use --wait to wait for it")
            return ExitCode.TIMED_OUT
        if not job.succeeded:
            output.message(f"{job_id}: {output.failure_line(job)}")
            return ExitCode.FAILED
        if not request.as_json:
            _deliver(client, job, request.target, alone=alone)
    except errors.JobNotFound:
        output.message_unknown(job_id)
        return ExitCode.UNKNOWN_ID
    except errors.WaitTimeout as error:
        output.message(f"{error.message}; the job continues: headrace result {job_id} --wait")
        return exit_code(error)
    return ExitCode.DONE


def _ended(client: Client, job_id: str, request: ResultRequest, deadline: float | None) -> Job:
    """Return the job; with `wait`, once it has ended."""
    if not request.wait:
        return client.status(job_id)
    left_s = None if deadline is None else max(deadline - time.monotonic(), 0)
    return client.wait(job_id, timeout_s=left_s)


def _deliver(client: Client, job: Job, target: Path | None, *, alone: bool) -> None:
    # A large result is not in the job object. A null result costs a request in vain.
    value = client.result(job) if job.result is None else job.value
    if target is not None:
        _store(job, value, target)
    elif alone:
        print_result(value)
    else:
        output.line(f"{job.id}: {output.result_line(job.result, value)}")


def print_result(value: object) -> None:
    """Print the result of a single job on standard output.

    Raises:
        typer.Exit: the result is binary, and standard output is a terminal.
    """
    if isinstance(value, bytes):
        output.binary(value, "the result")
    elif isinstance(value, str):
        output.line(value)
    else:
        output.json_line(value)


def _store(job: Job, value: object, target: Path) -> None:
    """Write a result to a file atomically.

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


def _check_target(request: ResultRequest, *, alone: bool) -> None:
    if request.target is None:
        return
    if request.as_json:
        raise typer.BadParameter("--json cannot be combined with --output")
    if not alone and not request.target.is_dir():
        raise typer.BadParameter(
            f"{request.target}: the results of several jobs require an existing folder",
            param_hint="--output",
        )
