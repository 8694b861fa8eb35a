"""Builds the requests for one job."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict, cast
from urllib.parse import quote

import msgspec

from headrace.client.inputs import InputRef, encode_input
from headrace.client.models import Job
from headrace.client.sansio import HttpRequest
from headrace.config.suggestions import did_you_mean
from headrace.errors import InvalidRequest
from headrace.jobs.options import DEFAULT_OPTIONS, JobOptions
from headrace.jobs.values.plain_values import plain
from headrace.schema.lines import JobRequest

JOBS: Final = "/api/v1/jobs"
JSON_HEADERS: Final = {"content-type": "application/json"}
NDJSON_HEADERS: Final = {"content-type": "application/x-ndjson"}


def trace_headers() -> dict[str, str]:
    """Return the trace context headers for a submit, if the caller uses OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return headers


class Options(TypedDict, total=False):
    """A job's options, documented in docs/api.md. None means the server's default."""

    priority: int | None
    expires: float | None
    countdown: float | None
    timeout: float | None
    result_ttl: int | None
    max_retries: int | None
    retry_backoff: float | None
    retry_backoff_max: float | None
    metadata: dict[str, Any] | None
    webhook: str | None
    webhook_events: Sequence[str] | None


def job_line(
    model: str,
    value: Any,
    content_type: str | None,
    version: str | None,
    options: Options,
    job_id: str | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> bytes:
    """Return one job as JSON: the body of a submit, or a line of a bulk request.

    Raises:
        InvalidRequest: the input, a parameter or an option cannot be sent.
    """
    set_options = {name: option for name, option in options.items() if option is not None}
    unknown = set_options.keys() - Options.__annotations__.keys()
    if unknown:
        names = ", ".join(sorted(unknown))
        near = did_you_mean(min(unknown), Options.__annotations__)
        raise InvalidRequest(
            f"unknown option: {names}{near}",
            hint=f"Valid options: {', '.join(Options.__annotations__)}.",
        )
    line = JobRequest(
        model=model, id=job_id, version=version,
        parameters=cast("dict[str, Any] | None", parameters or None),
        # The server checks the options.
        options=cast("JobOptions", set_options) if set_options else DEFAULT_OPTIONS,
    )  # fmt: skip
    if isinstance(value, InputRef):
        line.input_ref, line.content_type = value.ref, value.content_type or content_type
    else:
        line.input = msgspec.Raw(encode_input(value, content_type))
    try:
        return msgspec.json.encode(line, enc_hook=plain)
    except (TypeError, ValueError, RecursionError) as error:
        what = "a parameter or an option" if parameters else "an option"
        raise InvalidRequest(f"{what} cannot be sent: {error}") from None


def job_request(method: str, job: str | Job, *, wait_s: float = 0, below: str = "") -> HttpRequest:
    """Return a request for one job, or for the path `below` it."""
    job_id = job if isinstance(job, str) else job.id
    query = {"wait": f"{wait_s:g}"} if wait_s else {}
    return HttpRequest(method, f"{JOBS}/{quote(job_id, safe='')}{below}", query, wait_s=wait_s)
