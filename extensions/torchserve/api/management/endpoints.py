"""The management interface: register, scale, describe, list and unregister models."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec

from api.http.messages import Answer, Reply, Request
from api.routes.jobs.submission import submit_and_wait
from api.services import Services
from api.submission.job_request import ValidatedRequest, identity_of
from extensions.torchserve.api.management.changes import (
    change,
    load_failure,
    model_of,
    registry_of,
    until_followed,
    until_scaled,
    version_of,
)
from extensions.torchserve.api.management.model_descriptions import (
    describe,
    details_of,
    serving_of,
    url_of,
)
from extensions.torchserve.api.management.model_files import shown
from extensions.torchserve.api.management.parameters import read_query
from extensions.torchserve.api.management.registration import remove_fetched
from extensions.torchserve.api.parts import config_of
from extensions.torchserve.api.predictions.predict import handler_headers, runs_torchserve
from extensions.torchserve.api.predictions.results import answer_with
from extensions.torchserve.api.replies import Kind, TorchServeError, json_reply, status_reply
from extensions.torchserve.config.model_config import MAX_WORKERS, SEQUENCES, worker_options
from extensions.torchserve.config.workflow import WORKFLOWS, read_archives
from headrace.config.model.options import PER_WORKER
from headrace.jobs.options import DEFAULT_OPTIONS, InputDetails
from headrace.registry.model import (
    Change,
    ModelVersion,
    Registry,
    choose_default,
    set_options,
    unregister,
)

_PAGE: Final = 100
#: The headers of a request by which a handler knows that it is asked for its description.
_ASKED: Final = {"describe": "True", "explain": "False", "url_path": ""}
#: How much longer than a job may run a request waits for it.
_SLACK_S: Final = 30.0


async def list_models(services: Services, request: Request) -> Answer:
    """List the models by their names, a page at a time."""
    models = (await registry_of(services).read()).models
    names, document = _page(request, models)
    document["models"] = [
        {"modelName": name, "modelUrl": url_of(models[name].versions[models[name].default_version])}
        for name in names
    ]
    return json_reply(document)


async def list_workflows(services: Services, request: Request) -> Answer:
    """List the pipelines, which are TorchServe's workflows, a page at a time."""
    names, document = _page(request, services.catalog.pipelines)
    archives = await asyncio.to_thread(read_archives, services.settings.state_dir / WORKFLOWS)
    file = services.catalog.path.name
    document["workflows"] = [
        {"workflowName": name, "workflowUrl": archives.get(name, file)} for name in names
    ]
    return json_reply(document)


async def register_workflow(services: Services, request: Request) -> Answer:
    """Refuse a workflow, as TorchServe does too."""
    store, url = services.settings.model_store, read_query(request).text("url") or ""
    name = PurePosixPath(url).name
    known = PurePosixPath(name).stem in services.catalog.pipelines
    there = store is not None and await asyncio.to_thread(os.path.exists, store / name)
    if not known and not (name and there):
        raise TorchServeError(
            Kind.WORKFLOW_NOT_FOUND, f"There is no workflow {shown(url)} in the model store"
        )
    raise TorchServeError(
        Kind.BAD_REQUEST,
        "Workflows cannot be registered. Put the archive into the folder of --workflow-store, and "
        "start the server again",
    )


def _page(request: Request, names: Iterable[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the names on the page of a request, and the begin of the answer."""
    query, every = read_query(request), sorted(names)
    limit = query.number("limit")
    if limit is None or not 0 <= limit <= _PAGE:
        limit = _PAGE
    begin = max(0, query.number("next_page_token") or 0)
    end = begin + limit
    return every[begin:end], {"nextPageToken": str(end)} if end <= len(every) else {}


async def describe_model(
    services: Services, request: Request, name: str, version: str = ""
) -> Answer:
    """Describe the default version of a model, another one, or all of them."""
    model = model_of(await registry_of(services).read(), name)
    if version == "all":
        return json_reply(await describe(services, model, list(model.versions)))
    version = version_of(model, version)
    metadata = None
    if read_query(request).flag("customized", default=False):
        metadata = await _metadata_of(services, request, name, version)
    (found,) = await describe(services, model, [version])
    if metadata is not None:
        found["customizedMetadata"] = metadata
    return json_reply([found])


async def readiness(services: Services, _: Request, name: str) -> Answer:
    """Return whether a model has a worker, as KServe asks."""
    model = model_of(await registry_of(services).read(), name)
    reports = await services.queue.worker_states()
    serving = serving_of(name, model.default_version, reports.values())
    return json_reply({"name": name, "ready": any(one.state.ready for one in serving)})


async def scale(services: Services, request: Request, name: str, version: str = "") -> Answer:
    """Set how many workers a version has, at least and at most."""
    query = read_query(request)
    model = model_of(await registry_of(services).read(), name)
    chosen = version_of(model, version or query.text("model_version") or "")
    least = query.limited("min_worker", MAX_WORKERS)
    least = 1 if least is None else least
    most = query.limited("max_worker", MAX_WORKERS)
    most = least if most is None else most
    if most < least:
        raise TorchServeError(
            Kind.BAD_REQUEST, f"max_worker is {most}, less than min_worker, {least}; swap them"
        )
    if least < 0:
        raise TorchServeError(Kind.INDEX, f"min_worker is {least}; give 0 or more")

    if most > 1 and details_of(model.versions[chosen]).get(SEQUENCES):
        raise TorchServeError(
            Kind.BAD_REQUEST,
            f"The model {name} has sequences of requests, whose state is in one model process. "
            "Give it one worker",
        )

    def make(present: Registry) -> list[Change]:
        one = model_of(present, name).versions.get(chosen, ModelVersion())
        return set_options(present, name, chosen, _numbers(one, least, most))

    await change(services, request, name, make)
    if not query.flag("synchronous", default=False):
        return status_reply("Processing worker updates...", 202)
    state, error = await until_scaled(services, name, chosen)
    of = f"model: {name}, version: {version}" if version else f"model: {name}"
    if state == "failed":
        raise load_failure(services, name, chosen, error)
    if state == "pending":
        return status_reply(f"Workers scaling in progress for {of}", 206)
    return status_reply(f"Workers scaled to {least} for {of}")


def _numbers(one: ModelVersion, least: int, most: int) -> dict[str, Any]:
    """Return the options for so many workers; None takes an earlier change back."""
    options = worker_options(least, most)
    if 0 == least < most:
        # It needs no process while it has no requests, and gets one by the first of them.
        most = worker_options(1, most).get("max_replicas", 1)
        options = {"load": "on_demand", "replicas": 1, "min_replicas": 0, "max_replicas": most}
    declared = one.declared or {}
    found: dict[str, Any] = dict.fromkeys(("total_replicas", *PER_WORKER))
    if one.options.get("min_replicas") == 0:
        found["load"] = None
    if "total_replicas" in options and "max_replicas" in declared:
        # An option of the models file cannot be taken away, and these two do not go together.
        number = options["total_replicas"]
        options = {
            "replicas": number, "min_replicas": max(1, number), "max_replicas": max(1, number),
        }  # fmt: skip
    elif "max_replicas" in options and "total_replicas" in declared:
        options = {"total_replicas": most}
    return found | options


async def set_default(services: Services, request: Request, name: str, version: str) -> Answer:
    """Choose the version that runs requests without one."""

    def make(present: Registry) -> list[Change]:
        return choose_default(present, name, version_of(model_of(present, name), version))

    await change(services, request, name, make)
    # Later predictions run on it: its workers take the jobs over before the answer.
    await until_followed(services, name)
    return status_reply(f'Default version successfully updated for model "{name}" to "{version}"')


async def unregister_model(
    services: Services, request: Request, name: str, version: str = ""
) -> Answer:
    """Remove a version of a model, and wait until its workers have ended."""
    removed: list[tuple[str, ModelVersion]] = []

    def make(present: Registry) -> list[Change]:
        model = model_of(present, name)
        chosen = version_of(model, version)
        if chosen == model.default_version and len(model.versions) > 1:
            others = ", ".join(one for one in model.versions if one != chosen)
            raise TorchServeError(
                Kind.INVALID_VERSION,
                f"Version {chosen} is the default one of the model {name}, which has others too. "
                f"Remove those first, or choose another default version: {others}",
            )
        removed[:] = [(chosen, model.versions[chosen])]
        return unregister(present, name, chosen)

    after = await change(services, request, name, make)
    ((chosen, one),) = removed
    await remove_fetched(services, one.options)
    gone = chosen if after is not None else ""
    limit_s = config_of(services).unregister_model_timeout
    if await registry_of(services).until_removed(name, gone, limit_s) == "pending":
        raise TorchServeError(
            Kind.TIMED_OUT,
            f"The model {name} is unregistered, but its workers have not ended within {limit_s} s: "
            "they finish their requests first",
        )
    return status_reply(f'Model "{name}" unregistered')


async def _metadata_of(services: Services, request: Request, name: str, version: str) -> Any:
    """Return the description that the handler of a version gives (TorchServe's `describe_handle`).

    It is an object; None for null. As in TorchServe it is {} if the handler gives something else.
    """
    reports = await services.queue.worker_states()
    if not any(one.state.ready for one in serving_of(name, version, reports.values())):
        raise TorchServeError(
            Kind.UNAVAILABLE,
            f"The model {name} has no worker for version {version} that could describe it. "
            "Scale it up, or leave customized out",
        )
    model = services.model_statuses.for_version(services.catalog.get(name), version)
    if not runs_torchserve(model):
        return None
    headers = handler_headers(services, request, _ASKED)
    job_request = ValidatedRequest(
        model, b"null", DEFAULT_OPTIONS, identity_of(None, "", owner=request.caller.key_id),
        version, None, caller=request.caller, details=InputDetails(headers=headers),
    )  # fmt: skip
    wait_s = model.timeout_s + _SLACK_S
    job, _ = await submit_and_wait(services, job_request, request.receive, wait_s)
    if not job.state.final:
        await services.queue.cancel_one(job.id)
        raise TorchServeError(
            Kind.INTERNAL, f"The handler of {name} has not described it within {wait_s:g} s"
        )
    answer = await answer_with(services, request, job)
    try:
        found = msgspec.json.decode(answer.body) if isinstance(answer, Reply) else ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return found if found is None or isinstance(found, dict) else {}
