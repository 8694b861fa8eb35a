"""Predict, classify and regress: the jobs of a request, and their results.

A model with tensors gets one job for all rows of a request. Any other model gets one job for each
instance, whose input the instance is, as KServe's clients expect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from api.http.messages import JSON, NO_STORE, HangUp, Header, Reply, Request
from api.routes.jobs.submission import AcceptedJob
from api.services import Services
from api.submission.job_request import ValidatedRequest
from api.submission.waiting import ASYNC_APPLIED, prefers_async
from extensions.inference_protocols.jobs.inference import (
    JOB,
    Call,
    cancel,
    job_request,
    outputs_of,
    result_of,
    run,
    submit_job,
)
from extensions.inference_protocols.jobs.over_http import (
    accepted,
    body_of,
    call_of,
    error_reply,
    parsed,
)
from extensions.inference_protocols.models.lookup import model_for
from extensions.inference_protocols.tensorflow import answers, requests
from extensions.inference_protocols.tensors.datatypes import too_deep
from extensions.inference_protocols.tensors.declarations import INPUT, Declaration, declaration_of
from extensions.inference_protocols.tensors.requests import InferRequest, Unsupported, of_value
from headrace.config.model.catalog import ModelConfig
from headrace.errors import HeadraceError, InvalidRequest, MethodNotAllowed, ModelNotFound
from headrace.jobs.job import Job
from headrace.jobs.values.media_types import JSON_TYPE, is_json
from headrace.schema.serialization import job_object

PREDICT, CLASSIFY, REGRESS = "predict", "classify", "regress"
Read = TypeVar("Read")
#: A request for a model without tensors has at most so many instances: each is a job.
INSTANCES_MAX: Final = 1000
#: The header of an answer has the ids of so many of its jobs: proxies limit the length of headers.
IDS_MAX: Final = 32


async def served(services: Services, name: str, version: str = "") -> ModelConfig:
    """Return a model, or a version of it.

    Raises:
        ModelNotFound: it is unknown, or it is unloaded.
    """
    try:
        return await model_for(services, name, version)
    except ModelNotFound:
        which = f"Specific({name}, {version})" if version else f"Latest({name})"
        raise ModelNotFound(f"Servable not found for request: {which[:256]}") from None


async def label(_services: Services, _: Request, _model: str, name: str) -> Reply:
    """Refuse a label: models have none."""
    raise no_label(name.partition(":")[0])


def no_label(name: str) -> InvalidRequest:
    """Return the error for a label of a version."""
    return InvalidRequest(
        f"Unrecognized servable version label: {name[:64]}. Name a version, or none: the traffic "
        "of the model then decides"
    )


async def call(services: Services, request: Request, model: str, version: str = "") -> Reply:
    """Run a request; the last segment of its path ends with the verb."""
    name, colon, verb = (version or model).rpartition(":")
    if not colon:
        wrong = MethodNotAllowed(f"{request.method[:32]} is not allowed here; name a verb")
        return error_reply(wrong, ((b"allow", b"GET, HEAD"),))
    if verb == "explain":
        raise Unsupported("explain is not supported: a model has no explainer here")
    if verb not in (PREDICT, CLASSIFY, REGRESS):
        raise InvalidRequest(f"Malformed request: {request.method} {request.path[:256]}")
    found = await (served(services, model, name) if version else served(services, name))
    declared = declaration_of(found)

    try:
        body = await body_of(services, request)
        rows, asked = await parsed(_read, body, declared, verb)
        jobs = [
            job_request(services, call_of(request, at), found, one) for at, one in enumerate(asked)
        ]
    except RecursionError:
        raise too_deep() from None
    except HeadraceError as error:
        services.counters.refused(found.name, error.code)
        raise
    headers = ((JOB.encode(), ids_of(jobs).encode()),)
    try:
        if prefers_async(request.header(b"prefer")):
            return await _left(services, jobs, headers)
        result = _native_result if declared.native else outputs_of
        text = _answer(await results(services, request, jobs, result), declared, verb, rows)
        return Reply(200, text.encode(), JSON, (NO_STORE, *headers))
    except HeadraceError as error:
        return answers.error_reply(error, headers)


def _read(
    body: bytes, declared: Declaration, verb: str
) -> tuple[Sequence[Any] | None, list[InferRequest]]:
    """Return the rows of a body, None for column form, and its requests."""
    if declared.native and verb == PREDICT:
        texts = requests.texts_of(body)
        if isinstance(texts, list):
            return texts, natives_of(texts)
        return None, natives_of([texts])
    document = requests.document_of(body)
    rows = requests.instances_of(document) if verb == PREDICT else None
    return rows, requests_of(document, rows, declared, verb)


def ids_of(jobs: Sequence[ValidatedRequest]) -> str:
    """Return the ids of jobs, as answers show them."""
    return ", ".join(one.identity.job_id for one in jobs[:IDS_MAX])


def requests_of(
    document: dict[str, Any], rows: list[Any] | None, declared: Declaration, verb: str
) -> list[InferRequest]:
    """Return the requests of a document, one for each job.

    Raises:
        InvalidRequest: it does not fit the model.
    """
    if declared.native:
        raise InvalidRequest(f"Model '{declared.model}' declares no tensors, so it cannot {verb}")
    if verb != PREDICT:
        tensors = requests.tensors_of_examples(document, declared)
    elif rows is None:
        tensors = requests.tensors_of_columns(document["inputs"], declared)
    else:
        tensors = requests.tensors_of_rows(rows, declared)
    return [InferRequest(tensors)]


def check_count(name: str, count: int) -> None:
    """Raise InvalidRequest for more values than a request may have that is a job for each."""
    if count > INSTANCES_MAX:
        raise InvalidRequest(
            f"'{name}' has {count} values, and each is a job. Send up to {INSTANCES_MAX}"
        )


def natives_of(texts: Sequence[msgspec.Raw]) -> list[InferRequest]:
    """Return the requests of values for a model without tensors, one for each job."""
    check_count("instances", len(texts))
    found = []
    for text in texts:
        raw = requests.bytes_of_text(text)
        if raw is not None:
            found.append(of_value(raw, INPUT.name))
        else:
            json_type = {"content_type": JSON_TYPE}
            found.append(of_value(bytes(text), INPUT.name, parameters=json_type))
    return found


async def _left(
    services: Services, jobs: Sequence[ValidatedRequest], headers: tuple[Header, ...]
) -> Reply:
    """Submit jobs whose client does not wait; the answer is the only one, or all as `jobs`."""
    submits = (submit_job(services, one) for one in jobs)
    left = await asyncio.gather(*submits, return_exceptions=True)
    for one in left:
        if isinstance(one, BaseException):
            await asyncio.gather(*(cancel(services, job) for job in jobs))
            raise one
    found = [one.job for one in left if isinstance(one, AcceptedJob)]
    if len(found) == 1:
        return await accepted(services, found[0], headers)
    body = b'{"jobs":[%s]}' % b",".join(map(job_object, found))
    return Reply(202, body, JSON, (NO_STORE, ASYNC_APPLIED, *headers))


async def results(
    services: Services,
    request: Request,
    jobs: Sequence[ValidatedRequest],
    read: Callable[[Services, Job], Awaitable[Read]],
) -> list[Read]:
    """Run jobs, and return what `read` finds in each; if one fails, the others are cancelled."""

    async def one(call: Call, job: ValidatedRequest) -> Read:
        return await read(services, await run(services, call, job))

    if len(jobs) == 1:
        return [await one(Call(receive=request.receive), jobs[0])]
    # One watch for all of them notices that the client hangs up.
    with HangUp(request.receive) as hang_up:
        call = Call(receive=hang_up.receive)
        tasks = [asyncio.create_task(one(call, job)) for job in jobs]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _native_result(services: Services, job: Job) -> str:
    """Return the result of a model without tensors as JSON."""
    body, kind = await result_of(services, job)
    if is_json(kind.partition(";")[0]):
        return body.decode()
    return answers.text_of(body, encoded=not kind.startswith("text/"))


def _answer(found: list[Any], declared: Declaration, verb: str, rows: Sequence[Any] | None) -> str:
    key = "results" if verb != PREDICT else "outputs" if rows is None else "predictions"
    if declared.native:
        text = found[0] if rows is None else answers.listed(found)
    elif verb == CLASSIFY:
        text = answers.classes(found[0], labels_of(declared))
    else:
        writers = {"outputs": answers.outputs, "predictions": answers.predictions}
        text = writers.get(key, answers.regressions)(found[0])
    return f'{{"{key}":{text}}}'


def labels_of(declared: Declaration) -> Sequence[str]:
    """Return the labels of a model's classes; () if it declares none."""
    return next((one.labels for one in declared.outputs if one.labels), ())
