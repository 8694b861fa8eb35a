"""Infer over HTTP: the job of a request, and its tensors or the job itself as the answer."""

from __future__ import annotations

from typing import Any, Final

from api.http.bodies import read_body
from api.http.messages import NO_STORE, Header, Reply, Request
from api.routes.jobs.job import RETRY_AFTER
from api.routes.jobs.submission import REPLAYED, location
from api.services import Services
from api.submission.job_request import idempotency_key, request_trace
from api.submission.waiting import ASYNC_APPLIED, prefers_async
from extensions.inference_protocols.http.bodies import (
    LENGTH,
    compressed,
    decompressed,
    read_request,
    write_response,
)
from extensions.inference_protocols.http.errors import error_reply
from extensions.inference_protocols.jobs.inference import (
    Call,
    job_request,
    outputs_of,
    run,
    submit_job,
)
from extensions.inference_protocols.models.lookup import model_for
from extensions.inference_protocols.tensors.declarations import declaration_of
from extensions.inference_protocols.tensors.requests import InferRequest
from headrace.errors import HeadraceError
from headrace.jobs.job import Job
from headrace.schema.serialization import job_object

#: The header with the id of the job that a request has made.
JOB: Final = b"headrace-job"
_BINARY: Final = b"application/octet-stream"


async def infer(services: Services, request: Request, model: str, version: str = "") -> Reply:
    """Run a request with tensors on a model."""
    found = await model_for(services, model, version)
    body = await read_body(request, services.settings.body_limit_bytes)
    coding = request.header(b"content-encoding").strip().lower().decode("latin-1")
    try:
        if coding not in ("", "identity"):
            body = decompressed(body, coding, services.settings.body_limit_bytes)
        asked = read_request(body, request.header(LENGTH), declaration_of(found))
        call = Call(
            request.caller, request.header, idempotency_key(request), request.receive,
            waits=not prefers_async(request.header(b"prefer")), trace=request_trace(request),
        )  # fmt: skip
        validated = job_request(services, call, found, asked)
    except HeadraceError as error:
        services.counters.refused(found.name, error.code)
        raise
    headers: tuple[Header, ...] = ((JOB, validated.identity.job_id.encode()),)
    try:
        if not call.waits:
            job, replayed = await submit_job(services, validated)
            return await _accepted(services, job, (*headers, REPLAYED) if replayed else headers)
        job = await run(services, call, validated)
        tensors = await outputs_of(services, job)
        return _answer(request, asked, job, tensors, headers)
    except HeadraceError as error:
        return error_reply(error, headers)


async def _accepted(services: Services, job: Job, headers: tuple[Header, ...]) -> Reply:
    waiting_for = None
    if not job.state.final:
        waiting_for = await services.model_statuses.waiting_for(job.model, job.asked_version)
    body = job_object(job, waiting_for=waiting_for)
    return Reply(202, body, headers=(NO_STORE, location(job), ASYNC_APPLIED, RETRY_AFTER, *headers))


def _answer(
    request: Request,
    asked: InferRequest,
    job: Job,
    tensors: Any,
    headers: tuple[Header, ...],
) -> Reply:
    head = {"model_name": job.model, "model_version": job.version}
    if asked.id:
        head = {"id": asked.id, **head}
    body, length = write_response(head, tensors, asked)
    headers = (NO_STORE, *headers)
    if length:
        headers = (*headers, (LENGTH, b"%d" % length))
    accepted = request.header(b"accept-encoding")
    if accepted:
        codings = {one.partition(b";")[0].strip().lower() for one in accepted.split(b",")}
        for coding in ("gzip", "deflate"):
            if coding.encode() in codings:
                body = compressed(body, coding)
                headers = (*headers, (b"content-encoding", coding.encode()))
                break
    return Reply(200, body, _BINARY if length else b"application/json", headers)
