"""Register a model: read its files, add it to the registry, and wait until it is loaded."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

from api.http.messages import Answer, Request
from api.services import Services
from extensions.torchserve.api.management.changes import (
    change,
    load_failure,
    registry_of,
    until_scaled,
)
from extensions.torchserve.api.management.model_files import (
    Found,
    found_model,
    interrupted,
    remove_interrupted,
    shown,
)
from extensions.torchserve.api.management.parameters import Parameters, read_parameters
from extensions.torchserve.api.parts import config_of
from extensions.torchserve.api.replies import Kind, TorchServeError, status_reply
from extensions.torchserve.config.archive import TORCHSERVE, archive_handler, is_url
from extensions.torchserve.config.model_config import (
    INITIAL_WORKERS,
    MAX_WORKERS,
    REGISTRATION,
    RUNTIME,
    SEQUENCES,
    URL,
    details_of,
    model_options,
)
from extensions.torchserve.config.settings import TorchServeConfig
from headrace.config.model.options import DEFAULT_VERSION
from headrace.errors import BrokerFull, ConfigError, Conflict, InvalidRequest
from headrace.jobs.ids import MODEL_NAME
from headrace.models.catalog import ENVIRONMENTS
from headrace.models.extension import ModelFolder
from headrace.models.requirements import installed
from headrace.registry.model import Change, Registry, register, withdraw

#: The runtimes that a request may name, and TorchServe's one for handlers in C++.
_RUNTIMES: Final = ("python", "python3")
#: After these, no model is registered. After another error, Redis may have made the change.
_REFUSALS: Final = (TorchServeError, BrokerFull, Conflict, InvalidRequest)


async def register_model(services: Services, request: Request) -> Answer:
    """Register a model, and wait until its workers have loaded it."""
    config = config_of(services)
    parameters = await read_parameters(request)
    url = _url(parameters)
    _check_runtime(parameters)
    asked = _requested(parameters)
    handler = parameters.text("handler") or config.default_service_handler
    if is_url(url):
        await _clean_up(services)
    with ExitStack() as cleanup:
        files = found_model(
            services.settings,
            config.allowed_urls,
            registry_of(services).configs.sources,
            url,
            has_handler=bool(handler),
        )
        found = await asyncio.to_thread(cleanup.enter_context, files)
        if config.install_py_dep_per_model:
            await _install(services, found.model)
        name, version = _name(parameters, found), _version(found.model)
        flags = details_of(found.model.settings) if found.model is not None else {}
        options = {
            "source": found.source,
            **_options(config, name, version, found.model, parameters, asked),
        }
        # The last ones have no effect on how the model runs.
        details = {
            **flags, **options.get("options", {}), REGISTRATION: secrets.token_hex(4),
            URL: found.url,
        }  # fmt: skip
        if runtime := parameters.text("runtime"):
            details[RUNTIME] = runtime
        options["options"] = details
        await _register(services, request, name, version, options, found)
    workers = int(options.get("total_replicas", options.get("replicas", 0)))
    what = f'Model "{name}" Version: {version} registered with {workers} initial workers'
    if SEQUENCES in details:
        what += ". The state of all its sequences is in one model process, so it has one at most"
    if not workers:
        return status_reply(f"{what}. Use scale workers API to add workers for the model.")
    if not parameters.flag("synchronous", default=True):
        return status_reply("Processing worker updates...", 202)
    state, error = await until_scaled(services, name, version)
    if state == "ready":
        return status_reply(what)
    failure = load_failure(services, name, version, error)
    await change(services, request, name, lambda now: withdraw(now, name, version, options))
    await remove_fetched(services, options)
    raise failure


async def _register(
    services: Services,
    request: Request,
    name: str,
    version: str,
    options: dict[str, Any],
    found: Found,
) -> None:
    """Add a version to the registry, and give a fetched file its name.

    As in TorchServe, the file stays if the model has this version already.
    """

    def make(present: Registry) -> list[Change]:
        known = present.models.get(name)
        if known is not None and version in known.versions:
            if known.versions[version].options == options:
                return []  # by an earlier try, whose reply was lost
            raise TorchServeError(
                Kind.CONFLICT,
                f"The model {name} has a version {version} already. Unregister it first, or give "
                "the archive another version",
            )
        return register(present, name, version, options)

    try:
        # A version that is there already is refused before the file gets its name.
        make(await registry_of(services).read())
    except TorchServeError:
        found.leave()
        raise
    found.keep()
    try:
        await change(services, request, name, make)
    except _REFUSALS as error:
        if isinstance(error, TorchServeError):
            found.leave()
        else:
            found.discard()
        raise


async def remove_fetched(services: Services, options: Mapping[str, Any]) -> None:
    """Remove the file that was fetched for a version, which is gone, from the model store."""
    store, source = services.settings.model_store, options.get("source")
    url = (options.get("options") or {}).get(URL, "")
    if store is None or not source or not is_url(url):
        return
    models = (await registry_of(services).read()).models.values()
    if all(each.options.get("source") != source for m in models for each in m.versions.values()):
        (store / source).unlink(missing_ok=True)


def _url(parameters: Parameters) -> str:
    url = parameters.text("url")
    if url is None:
        raise TorchServeError(
            Kind.BAD_REQUEST, "The parameter url is missing. Send the name of an archive, or a URL"
        )
    if not url.strip() or "\0" in url:
        raise TorchServeError(
            Kind.MODEL_NOT_FOUND,
            "The parameter url is empty, or has a NUL character. Send the name of an archive",
        )
    if ".." in url:
        raise TorchServeError(
            Kind.MODEL_NOT_FOUND, f"{shown(url)}: a url with .. is not allowed; name the archive"
        )
    return url


def _check_runtime(parameters: Parameters) -> None:
    runtime = parameters.text("runtime")
    if runtime is None or runtime in _RUNTIMES:
        return
    if runtime == "LSP":
        why = "handlers in C++ cannot run here. Give the archive one in Python"
    else:
        why = f"no handler runs in it. Send one of {', '.join(_RUNTIMES)}"
    raise TorchServeError(Kind.BAD_REQUEST, f"The parameter runtime is {shown(runtime)}: {why}")


async def _clean_up(services: Services) -> None:
    """Remove what killed registrations have left in the model store."""
    left = await asyncio.to_thread(interrupted, services.settings.model_store)
    if left:
        models = (await registry_of(services).read()).models.values()
        used = {str(one.options.get("source")) for m in models for one in m.versions.values()}
        await asyncio.to_thread(remove_interrupted, left, used)


def _requested(parameters: Parameters) -> dict[str, int]:
    asked = {
        "batchSize": parameters.limited("batch_size"),
        "maxBatchDelay": parameters.limited("max_batch_delay"),
        INITIAL_WORKERS: parameters.limited("initial_workers", MAX_WORKERS),
        "responseTimeout": parameters.limited("response_timeout"),
        "startupTimeout": parameters.limited("startup_timeout"),
    }
    return {name: number for name, number in asked.items() if number is not None}


async def _install(services: Services, model: ModelFolder | None) -> None:
    """Install the packages of a model now, so that the client gets the errors."""
    if model is None or model.requirements is None:
        return
    environments = services.settings.state_dir.absolute() / ENVIRONMENTS
    try:
        await asyncio.to_thread(installed, model.requirements, environments)
    except ConfigError as error:
        raise TorchServeError(
            Kind.MODEL, f"Its packages cannot be installed: {error.message}"
        ) from None


def _name(parameters: Parameters, found: Found) -> str:
    name = parameters.text("model_name") or (found.model.name if found.model is not None else "")
    if not name:
        raise TorchServeError(
            Kind.INVALID_MODEL,
            f"{found.source}: the model has no name. Send one as model_name, or write modelName "
            "into the manifest",
        )
    if not re.fullmatch(MODEL_NAME, name):
        raise TorchServeError(
            Kind.BAD_REQUEST,
            f"{shown(name)} cannot be the name of a model, which has 1 to 64 of A-Z a-z 0-9 _ . - "
            "and does not begin with . or -. Send another one as model_name",
        )
    return name


def _version(model: ModelFolder | None) -> str:
    return DEFAULT_VERSION if model is None else str(model.options.get("version", DEFAULT_VERSION))


def _options(
    config: TorchServeConfig,
    name: str,
    version: str,
    model: ModelFolder | None,
    parameters: Parameters,
    asked: Mapping[str, int],
) -> dict[str, Any]:
    """Return the options of a version, by the precedence that TorchServe has for each."""
    settings = model.settings if model is not None else {}
    options = model_options(config, name, version, settings, asked)
    handler = parameters.text("handler")
    if not handler and (model is None or "handler" not in model.options):
        handler = config.default_service_handler
    try:
        if handler and model is not None:
            options["handler"] = archive_handler(model.folder, handler)
        elif handler:
            options["handler"] = f"{TORCHSERVE}{handler}"
    except ConfigError as error:
        raise TorchServeError(Kind.BAD_REQUEST, error.message) from None
    return options
