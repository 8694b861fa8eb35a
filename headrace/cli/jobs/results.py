"""`headrace result` and `input`: write results and inputs to standard output or to files."""

from __future__ import annotations

import mimetypes
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from headrace import errors
from headrace.cli.shared import options, output
from headrace.cli.shared.exit_codes import ExitCode, exit_code
from headrace.cli.shared.inputs import STDIN, given_ids
from headrace.cli.shared.options import client_of, option
from headrace.jobs.values.media_types import BINARY_TYPE, image_type

if TYPE_CHECKING:
    from headrace.client import Client
    from headrace.client.models import Job

RETRY_S: Final = 60


def result(
    ids: options.JobIds,
    wait: options.Wait = False,
    timeout: options.Timeout = None,
    target: Path | None = option(
        "--output -o FILE",
        "Write the result to FILE; for several jobs, an existing folder "
        "(default: standard output).",
    ),
    retry: float = options.retry("is unreachable", RETRY_S),
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Print the results of jobs: JSON and text as a line, binary results as bytes."""
    alone = len(ids) == 1 and ids[0] != STDIN
    if target is not None and as_json:
        raise typer.BadParameter("--json cannot be combined with --output")
    if target is not None and not alone and not target.is_dir():
        raise typer.BadParameter(
            f"{target}: the results of several jobs require an existing folder",
            param_hint="--output",
        )
    deadline = None if timeout is None else time.monotonic() + timeout
    code = ExitCode.DONE
    with client_of(url, retry_s=retry) as client:
        client.session.on_waiting = lambda reason: output.message(f"waits for its model: {reason}")
        for job_id in given_ids(ids):
            try:
                if deadline is not None:
                    job = client.wait(job_id, timeout_s=max(deadline - time.monotonic(), 0))
                else:
                    job = client.wait(job_id) if wait else client.status(job_id)
                if as_json:
                    output.json_line(job)
                code = max(code, _unsuccessful(job))
                if job.succeeded and not as_json:
                    _deliver(client, job, target, alone=alone)
            except errors.JobNotFound:
                code = max(code, output.unknown_job(job_id))
            except errors.WaitTimeout as error:
                output.message(
                    f"{error.message}; the job continues: headrace result {job_id} --wait"
                )
                code = max(code, exit_code(error))
    raise typer.Exit(code)


def job_input(
    job_id: options.JobId,
    target: Path | None = option(
        "--output -o FILE", "Write the input to FILE (default: standard output)."
    ),
    url: options.Url = None,
) -> None:
    """Print the input of a job that has failed, waits or runs; bytes as they are."""
    with client_of(url) as client:
        try:
            value = client.job_input(job_id)
        except errors.JobNotFound:
            raise typer.Exit(output.unknown_job(job_id)) from None
        except errors.InputGone as error:
            output.message(error.message)
            raise typer.Exit(ExitCode.FAILED) from None
    if target is not None:
        _write(target, value)
    else:
        print_result(value, "the input")


def _unsuccessful(job: Job) -> ExitCode:
    """Print why a job has no result, if so; return the exit code."""
    if not job.ended:
        output.message(f"{job.id}: {job.status}; use --wait to wait for it")
        return ExitCode.TIMED_OUT
    if not job.succeeded:
        output.message(f"{job.id}: {output.failure_line(job)}")
        return ExitCode.FAILED
    return ExitCode.DONE


def _deliver(client: Client, job: Job, target: Path | None, *, alone: bool) -> None:
    # A large result is not in the job object. A null result costs a request in vain.
    value = client.result(job) if job.result is None else job.value
    if target is not None:
        _store(job, value, target)
    elif alone:
        print_result(value)
    else:
        output.line(f"{job.id}: {output.result_line(job.result, value)}")


def print_result(value: object, what: str = "the result") -> None:
    """Print the result or the input of a job; raise Exit if it is binary, for a terminal."""
    if isinstance(value, bytes):
        output.binary(value, what)
    elif isinstance(value, str):
        output.line(value)
    else:
        output.json_line(value)


def _store(job: Job, value: object, target: Path) -> None:
    """Write a result to a file, as `_write`."""
    _write(target / f"{job.id}{_suffix(job, value)}" if target.is_dir() else target, value)


def _write(path: Path, value: object) -> None:
    """Write a value to a file atomically; raise ConfigError if the file cannot be written."""
    if isinstance(value, bytes):
        data = value
    else:
        data = (value if isinstance(value, str) else f"{output.json_text(value)}\n").encode()
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


def _suffix(job: Job, value: object) -> str:
    if not isinstance(value, bytes):
        return ".txt" if isinstance(value, str) else ".json"
    kind = job.result.get("content_type", "") if isinstance(job.result, dict) else ""
    kind = kind.partition(";")[0]
    if kind in ("", BINARY_TYPE):
        kind = image_type(value) or BINARY_TYPE
    return mimetypes.guess_extension(kind) or ".bin"
