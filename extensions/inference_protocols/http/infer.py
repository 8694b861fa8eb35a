"""Infer over HTTP: the job of a request, and its tensors or the job itself as the answer."""

from __future__ import annotations

from typing import Any, Final

from api.http.messages import NO_STORE, Header, Reply, Request
from api.routes.jobs.submission import REPLAYED
from api.services import Services
from extensions.inference_protocols.http.bodies import (
    LENGTH,
    read_request,
    write_response,
)
from extensions.inference_protocols.jobs.inference import (
    JOB,
    job_request,
    outputs_of,
    run,
    submit_job,
)
from extensions.inference_protocols.jobs.over_http import (
    accepted,
    body_of,
    call_of,
    compressed,
    error_reply,
    parsed,
)
from extensions.inference_protocols.models.lookup import model_for
from extensions.inference_protocols.tensors.declarations import declaration_of
from extensions.inference_protocols.tensors.requests import InferRequest
from headrace.errors import HeadraceError
from headrace.jobs.job import Job

_BINARY: Final = b"application/octet-stream"


async def infer(services: Services, request: Request, model: str, version: str = "") -> Reply:
    """Run a request with tensors on a model."""
    found = await model_for(services, model, version)
    try:
        body, header = await body_of(services, request), request.header(LENGTH)
        asked = await parsed(read_request, body, header, declaration_of(found))
        call = call_of(request)
        validated = job_request(services, call, found, asked)
    except HeadraceError as error:
        services.counters.refused(found.name, error.code)
        raise
    headers: tuple[Header, ...] = ((JOB.encode(), validated.identity.job_id.encode()),)
    try:
        if not call.waits:
            job, replayed = await submit_job(services, validated)
            return await accepted(services, job, (*headers, REPLAYED) if replayed else headers)
        job = await run(services, call, validated)
        tensors = await outputs_of(services, job)
        return await _answer(request, asked, job, tensors, headers)
    except HeadraceError as error:
        return error_reply(error, headers)


async def _answer(
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
    if accepts := request.header(b"accept-encoding"):
        codings = {one.partition(b";")[0].strip().lower() for one in accepts.split(b",")}
        for coding in ("gzip", "deflate"):
            if coding.encode() in codings:
                body = await parsed(compressed, body, coding)
                headers = (*headers, (b"content-encoding", coding.encode()))
                break
    return Reply(200, body, _BINARY if length else b"application/json", headers)
