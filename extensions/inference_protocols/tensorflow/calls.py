"""The paths of TensorFlow Serving: predict, classify and regress, and what models are.

A model with tensors gets one job for all rows of a request. Any other model gets one job for each
instance, whose input the instance is, as KServe's clients expect.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from api.http.messages import NO_STORE, HangUp, Header, Receive, Reply, Request, json_reply
from api.routes.table import Operation
from api.services import Services
from api.submission.job_request import ValidatedRequest, idempotency_key
from api.submission.waiting import prefers_async
from extensions.inference_protocols.jobs import inference
from extensions.inference_protocols.jobs.over_http import body_of, error_reply, leave, parsed
from extensions.inference_protocols.tensorflow import answers, requests, status
from extensions.inference_protocols.tensors.datatypes import too_deep
from extensions.inference_protocols.tensors.requests import (
    Declaration,
    InferRequest,
    Unsupported,
    declaration_of,
    of_value,
)
from headrace.access.api_key import Scope
from headrace.config.model.catalog import ModelConfig
from headrace.errors import HeadraceError, InvalidRequest, JobExpired, MethodNotAllowed, Throttled
from headrace.jobs.job import Job
from headrace.jobs.values.media_types import JSON_TYPE, is_json

PREDICT, CLASSIFY, REGRESS = "predict", "classify", "regress"
Result = TypeVar("Result")
#: A request for a model without tensors has at most so many instances: each is a job.
INSTANCES_MAX: Final = 1000
#: The header of an answer has the ids of so many of its jobs: proxies limit the length of headers.
IDS_MAX: Final = 32
_MODEL: Final = "/v1/models/{model}"
_VERSION: Final = _MODEL + "/versions/{version}"
_LABEL: Final = _MODEL + "/labels/{label}"
#: The paths below /v1/models that OpenAI's API does not have.
_OURS: Final = re.compile(r"/v1/models/[^/]+(:\w*|/metadata|/(versions|labels)/.*)")


async def _call(services: Services, request: Request, model: str, version: str = "") -> Reply:
    """Run a request; the last segment of its path ends with the verb."""
    name, colon, verb = (version or model).rpartition(":")
    if not colon:
        wrong = MethodNotAllowed(f"{request.method[:32]} is not allowed here; name a verb")
        return error_reply(wrong, ((b"allow", b"GET, HEAD"),))
    if verb == "explain":
        raise Unsupported("explain is not supported: a model has no explainer here")
    if verb not in (PREDICT, CLASSIFY, REGRESS):
        raise InvalidRequest(f"Malformed request: {request.method} {request.path[:256]}")
    config = await status.served(services, *((model, name) if version else (name,)))
    declared = declaration_of(config)
    with inference.counting_refusals(services, config):
        body = await body_of(services, request)
        rows, asked = await parsed(len(body), _read, body, declared, verb)
        jobs = jobs_of(services, request, config, asked)
    headers = ((inference.JOB.encode(), ids_of(jobs).encode()),)
    try:
        if prefers_async(request.header(b"prefer")):
            return await leave(services, jobs, headers)
        result = _native_result if declared.native else inference.outputs_of
        answer = _answer(await results(services, request, jobs, result), declared, verb, rows)
        return Reply(200, msgspec.json.encode(answer), headers=(NO_STORE, *headers))
    except HeadraceError as error:
        return _error_reply(error, headers)


async def _label(_services: Services, _: Request, _model: str, name: str) -> Reply:
    raise no_label(name.partition(":")[0])


def no_label(name: str) -> InvalidRequest:
    """Return the error for a label of a version: models have none."""
    return InvalidRequest(
        f"Unrecognized servable version label: {name[:64]}. Name a version, or none: the traffic "
        "of the model then decides"
    )


async def _version_status(services: Services, _: Request, model: str, version: str) -> Reply:
    members = await status.members(services, await status.served(services, model, version))
    return json_reply({"model_version_status": members["model_version_status"][:1]})


async def _metadata(services: Services, _: Request, model: str, version: str = "") -> Reply:
    config = await status.served(services, model, version)
    spec = {"name": config.name, "signature_name": "", "version": config.version}
    signatures = status.signatures_of(config)
    return json_reply({"model_spec": spec, "metadata": {"signature_def": signatures}})


#: The last parameter of a path with a verb has it as `NAME:verb`. GET of a model is OpenAI's too.
ROUTES: Final = (
    Operation("POST", _MODEL, _call, Scope.SUBMIT),
    Operation("POST", _VERSION, _call, Scope.SUBMIT),
    Operation("POST", _LABEL, _label, Scope.SUBMIT),
    Operation("GET", _LABEL, _label, Scope.READ),
    Operation("GET", _VERSION, _version_status, Scope.READ),
    Operation("GET", f"{_MODEL}/metadata", _metadata, Scope.READ),
    Operation("GET", f"{_VERSION}/metadata", _metadata, Scope.READ),
)


def error_for(path: str, error: HeadraceError) -> Reply | None:
    """Return an error of these paths; None for another path."""
    return _error_reply(error) if _OURS.fullmatch(path) else None


def _error_reply(error: HeadraceError, headers: tuple[Header, ...] = ()) -> Reply:
    """Return the answer for an error; a full queue is 429, and an expired job 504."""
    reply = error_reply(error, headers)
    code = 429 if isinstance(error, Throttled) else 504
    return reply._replace(status=code) if isinstance(error, (Throttled, JobExpired)) else reply


def _read(
    body: bytes, declared: Declaration, verb: str
) -> tuple[Sequence[Any] | None, list[InferRequest]]:
    """Return the rows of a body, None for column form, and its requests."""
    try:
        if declared.native and verb == PREDICT:
            texts = requests.texts_of(body)
            if isinstance(texts, list):
                return texts, natives_of(texts)
            return None, natives_of([texts])
        document = requests.document_of(body)
        rows = requests.instances_of(document) if verb == PREDICT else None
        return rows, requests_of(document, rows, declared, verb)
    except RecursionError:
        raise too_deep() from None


def requests_of(
    document: dict[str, Any], rows: list[Any] | None, declared: Declaration, verb: str
) -> list[InferRequest]:
    """Return the requests of a document, one for each job; InvalidRequest if it does not fit."""
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
    json_type = {"content_type": JSON_TYPE}
    return [
        of_value(bytes(text), parameters=json_type) if raw is None else of_value(raw)
        for text, raw in ((text, requests.bytes_of_text(text)) for text in texts)
    ]


def jobs_of(
    services: Services, request: Request, model: ModelConfig, asked: Sequence[InferRequest]
) -> list[ValidatedRequest]:
    """Return the jobs of a request, each with an idempotency key of its own."""
    key = idempotency_key(request)
    keys = (f"{key}-{place}" if key and place else key for place in range(len(asked)))
    return [
        inference.job_request(services, request, model, given, own)
        for given, own in zip(asked, keys, strict=True)
    ]


def ids_of(jobs: Sequence[ValidatedRequest]) -> str:
    """Return the ids of jobs, as answers show them."""
    return ", ".join(job.identity.job_id for job in jobs[:IDS_MAX])


async def results(
    services: Services,
    request: Request,
    jobs: Sequence[ValidatedRequest],
    read: Callable[[Services, Job], Awaitable[Result]],
) -> list[Result]:
    """Run jobs, and return what `read` finds in each; if one fails, the others are cancelled."""

    async def result(job: ValidatedRequest, receive: Receive) -> Result:
        return await read(services, await inference.run(services, job, receive))

    if len(jobs) == 1:
        return [await result(jobs[0], request.receive)]
    # One watch for all of them notices that the client hangs up.
    with HangUp(request.receive) as hang_up:
        tasks = [asyncio.create_task(result(job, hang_up.receive)) for job in jobs]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _native_result(services: Services, job: Job) -> Any:
    body, kind = await inference.result_of(services, job)
    if is_json(kind.partition(";")[0]):
        return msgspec.Raw(body)
    return answers.value_of(body, encoded=not kind.startswith("text/"))


def _answer(
    values: Sequence[Any], declared: Declaration, verb: str, rows: Sequence[Any] | None
) -> dict[str, Any]:
    if declared.native:
        return {"outputs": values[0]} if rows is None else {"predictions": values}
    (tensors,) = values
    if verb == CLASSIFY:
        return {"results": answers.classes(tensors, labels_of(declared))}
    if verb == REGRESS:
        return {"results": answers.regressions(tensors)}
    if rows is None:
        return {"outputs": answers.outputs(tensors)}
    return {"predictions": answers.predictions(tensors)}


def labels_of(declared: Declaration) -> Sequence[str]:
    """Return the labels of a model's classes; () if it declares none."""
    return next((output.labels for output in declared.outputs if output.labels), ())
