"""The registry: register, change, reload and remove models while jobs run."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Collection, Coroutine, Iterator
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType, to_builtins

from api.components.model_registry import ChangeState, MakeChanges, ModelRegistry
from api.http.messages import (
    NO_CONTENT,
    ClientGone,
    HangUp,
    Reply,
    Request,
    StreamingReply,
    json_reply,
)
from api.routes.event_stream import HEAD, EventWriter, StreamEvent, stream_events
from api.routes.jobs.events import last_event_id
from api.services import Services
from api.submission.decoding import JsonDecoder, read_query
from headrace.config.model.options import ModelOptions
from headrace.config.model.traffic import Traffic
from headrace.config.suggestions import listing
from headrace.errors import BrokerError, Forbidden, InvalidRequest, ModelNotFound
from headrace.jobs.ids import ModelName
from headrace.jobs.job import Amount
from headrace.observability.worker_report import SHADOW, ShadowResult
from headrace.queue.asyncio_tasks import wait_at_most
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.registry.model import (
    HIDDEN_OPTIONS,
    Change,
    Difference,
    RegisteredModel,
    Registry,
    choose_default,
    differences,
    register,
    reload,
    set_options,
    set_traffic,
    unregister,
)
from headrace.registry.store import LoggedChange
from headrace.schema.members import NULL, time_of
from headrace.schema.registry import (
    ModelDifference,
    ModelDifferences,
    ModelTraffic,
    RegisteredVersion,
    Registration,
)

CHANGES: Final = "/api/v1/registry/changes"
DIFFERENCES: Final = "/api/v1/registry/differences"
EVENTS: Final = "/api/v1/registry/events"
_CHANGES_MAX: Final = 1000
#: The id of an event is that of its entry in the log of changes. So any API process can continue
#: the stream of another one, as far back as the log reaches. Any other id is ignored.
_EVENT_ID: Final = re.compile("[0-9]{1,15}-[0-9]{1,15}")
T = TypeVar("T")

MODEL: Final = "/api/v1/models/{model}"
VERSION: Final = "/api/v1/models/{model}/versions/{version}"
BODY_LIMIT_BYTES: Final = 256 * 1024
#: Options that a client may set without `model_api`: none names code or a file, or is read by code.
TUNING: Final = frozenset({
    "replicas", "min_replicas", "max_replicas", "scale_down_s", "total_replicas", "device_ids",
    "labels", "memory_mb", "load", "idle_unload_s", "weight", "max_batch_size",
    "max_batch_delay_ms", "allowed_batch_sizes",
    "max_batch_cost", "cost", "max_yield_s", "max_queue_depth", "schedule",
    "max_queued_tokens", "timeout_s", "expires_s",
    "min_timeout_s", "load_timeout_s", "max_retries", "retry_backoff_s", "retry_backoff_max_s",
    "max_restarts_per_minute", "max_jobs", "max_memory_mb", "recycle_overlap", "events",
    "channels_last", "malloc_tuning", "preprocess_threads", "preprocess_processes",
})  # fmt: skip
_GUARDED: Final = frozenset(ModelOptions.__struct_fields__) - TUNING


class ModelChange(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to change of a model."""

    default_version: Annotated[
        str | None, Meta(description="The version of jobs that name none.")
    ] = None
    version: Annotated[
        str, Meta(description="The version whose options are set; by default the default version.")
    ] = ""
    options: Annotated[
        dict[str, Any],
        Meta(description="Options of the models file; null takes a change back."),
    ] = {}


class NewVersion(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The options of a version, as a models file has them."""

    options: dict[str, Any]


class ChangeQuery(msgspec.Struct):
    """The query of a change."""

    wait: Annotated[
        Amount | UnsetType,
        Meta(
            description="Seconds to wait until the workers serve the change or cannot load it, "
            "capped at `max_wait_s`.",
            examples=[10],
        ),
    ] = UNSET


class RemovalQuery(msgspec.Struct):
    """The query of a removal."""

    wait: Annotated[
        Amount | UnsetType,
        Meta(
            description="Seconds to wait until no worker serves it any more, capped at "
            "`max_wait_s`.",
            examples=[10],
        ),
    ] = UNSET


class PendingRemoval(msgspec.Struct, kw_only=True):
    """A removal that some workers have not finished."""

    name: ModelName
    state: Annotated[Literal["pending"], Meta(description="A worker still serves it.")]


class ReloadQuery(ChangeQuery):
    """The query of a reload."""

    version: Annotated[str, Meta(description="By default the default version.")] = ""


_TRAFFIC: Final = JsonDecoder(Traffic)
_CHANGE: Final = JsonDecoder(ModelChange)
_VERSION: Final = JsonDecoder(NewVersion)


async def register_version(services: Services, request: Request, model: str, version: str) -> Reply:
    """Register a version of a model, or replace it and load it again."""
    wait_s = read_query(request, ChangeQuery).wait
    options = (await _VERSION.read(request, BODY_LIMIT_BYTES)).options
    _may_register(services)
    known = await registry_of(services).read()
    new = model not in known.models or version not in known.models[model].versions

    def make(registry: Registry) -> list[Change]:
        return register(registry, model, version, options)

    status = 201 if new else 200
    return await _changed(services, request, model, make, version, wait_s, status)


async def change_model(services: Services, request: Request, model: str) -> Reply:
    """Set options of a version, such as `replicas`, or choose the default version."""
    wait_s = read_query(request, ChangeQuery).wait
    change = await _CHANGE.read(request, BODY_LIMIT_BYTES)
    if guarded := change.options.keys() & _GUARDED:
        _may_register(services, f"{listing(guarded)} cannot be changed over HTTP here")
    if (change.default_version is None) == (not change.options):
        raise InvalidRequest(
            "give either `options` or `default_version`",
            hint="Each request makes one change.",
        )
    chosen = change.default_version

    def make(registry: Registry) -> list[Change]:
        if chosen is not None:
            return choose_default(registry, model, chosen)
        return set_options(registry, model, change.version, change.options)

    return await _changed(services, request, model, make, chosen or change.version, wait_s)


async def reload_model(services: Services, request: Request, model: str) -> Reply:
    """Start new model processes of a version; the old ones serve until these are ready."""
    query = read_query(request, ReloadQuery)

    def make(registry: Registry) -> list[Change]:
        return reload(registry, model, query.version)

    return await _changed(services, request, model, make, query.version, query.wait)


async def remove_model(services: Services, request: Request, model: str) -> Reply:
    """Remove a model with all versions; its waiting jobs stay in their queue."""
    return await _remove(services, request, model)


async def remove_version(services: Services, request: Request, model: str, version: str) -> Reply:
    """Remove a version; the default version only if it is the last one."""
    return await _remove(services, request, model, version)


async def _remove(services: Services, request: Request, model: str, version: str = "") -> Reply:
    seconds = read_query(request, RemovalQuery).wait
    registered = await _make(
        services, request, model, lambda registry: unregister(registry, model, version)
    )
    state: ChangeState | None = None
    if seconds is not UNSET:
        limit_s = min(seconds, services.settings.max_wait_s)
        gone = version if registered is not None else ""
        wait = registry_of(services).until_removed(model, gone, limit_s)
        state = await _unless_gone(request, wait)
    if registered is not None:
        outcome = None if state is None else (state, "")
        return await _registration(services, registered, outcome=outcome)
    if state == "pending":
        return json_reply(PendingRemoval(name=model, state="pending"), 202)
    return Reply(NO_CONTENT, b"")


async def get_registration(services: Services, _: Request, model: str) -> Reply:
    """Return the versions of a model, and who changed it last."""
    return await _registration(services, await registry_of(services).model(model))


async def get_traffic(services: Services, _: Request, model: str) -> Reply:
    """Return where the jobs of a model go that name no version."""
    return await _traffic(services, await registry_of(services).model(model))


async def put_traffic(services: Services, request: Request, model: str) -> Reply:
    """Share the jobs that name no version among versions; this replaces the present traffic."""
    traffic = await _TRAFFIC.read(request, BODY_LIMIT_BYTES)
    return await _route(services, request, model, traffic)


async def delete_traffic(services: Services, request: Request, model: str) -> Reply:
    """Return to the traffic of the models file, or to the default version."""
    return await _route(services, request, model, None)


async def _route(
    services: Services, request: Request, model: str, traffic: Traffic | None
) -> Reply:
    seconds = read_query(request, ChangeQuery).wait
    registered = await _change(
        services, request, model, lambda registry: set_traffic(registry, model, traffic)
    )
    routing = registered.routing or Traffic()
    versions = {version for version, weight in routing.weights.items() if weight}
    if routing.shadow is not None:
        versions.add(routing.shadow)
    versions = versions if routing.weights else versions | {registered.default_version}
    outcome = await _outcome(services, request, model, versions, seconds)
    return await _traffic(services, registered, outcome)


async def _changed(
    services: Services,
    request: Request,
    model: str,
    make: MakeChanges,
    version: str,
    wait_s: float | UnsetType,
    status: int = 200,
) -> Reply:
    """Change a version, "" for the default one; wait until the workers serve it."""
    registered = await _change(services, request, model, make)
    versions = [version or registered.default_version]
    outcome = await _outcome(services, request, model, versions, wait_s)
    return await _registration(services, registered, status, outcome)


async def _make(
    services: Services, request: Request, model: str, make: MakeChanges
) -> RegisteredModel | None:
    by = request.caller.key_id or "a client without an API key"
    return await registry_of(services).change(model, make, by, generation=_generation(request))


async def _change(
    services: Services, request: Request, model: str, make: MakeChanges
) -> RegisteredModel:
    """Make changes, and return the model as it is then."""
    registered = await _make(services, request, model, make)
    if registered is None:
        raise ModelNotFound(
            f"the model {model[:64]!r} was removed meanwhile", hint="register it again"
        )
    return registered


async def _outcome(
    services: Services,
    request: Request,
    model: str,
    versions: Collection[str],
    seconds: float | UnsetType,
) -> tuple[ChangeState, str] | None:
    """Wait until the workers serve these versions; None if the request has no `wait`."""
    if seconds is UNSET:
        return None
    limit_s = min(seconds, services.settings.max_wait_s)
    return await _unless_gone(request, registry_of(services).until_served(model, versions, limit_s))


async def _unless_gone(request: Request, wait: Coroutine[Any, Any, T]) -> T:
    """Wait; raise ClientGone once the client has hung up."""
    waited = asyncio.create_task(wait)
    try:
        with HangUp(request.receive, waited.cancel) as client:
            await asyncio.wait({waited})
            if client.gone and waited.cancelled():
                raise ClientGone
            return waited.result()
    finally:
        waited.cancel()


def registry_of(services: Services) -> ModelRegistry:
    """Return the registry of this process; raise ModelNotFound if it has none."""
    if services.registry is None:
        raise ModelNotFound(
            "this API process has no registry of models",
            hint="Start it with `headrace up` or `headrace api`.",
        )
    return services.registry


def _may_register(
    services: Services, refusal: str = "models cannot be registered over HTTP here"
) -> None:
    if not services.settings.model_api:
        raise Forbidden(
            refusal,
            hint="Set HEADRACE_MODEL_API=true, or use `headrace apply` with a models file.",
        )


def _generation(request: Request) -> int | None:
    text = request.header(b"if-match").decode("latin-1").strip().strip('"')
    if not text or text == "*":
        return None
    if not text.isdecimal():
        raise InvalidRequest(
            f"If-Match: {text[:64]!r} is not the generation of a model",
            hint="Send the `generation` that GET returned, as a number.",
        )
    return int(text)


async def _registration(
    services: Services,
    model: RegisteredModel,
    status: int = 200,
    outcome: tuple[ChangeState, str] | None = None,
) -> Reply:
    await services.model_statuses.refresh()
    default = model.default_version
    why_unserved = services.model_statuses.why_unserved
    versions = [
        RegisteredVersion(
            version=version,
            default=version == default,
            declared=entry.declared is not None,
            changed={key: entry.changed[key] for key in entry.changed if key not in HIDDEN_OPTIONS},
            loads=entry.loads,
            unserved=why_unserved(model.name, version, entry.options),
        )
        for version, entry in model.versions.items()
    ]
    registration = Registration(
        name=model.name,
        generation=model.generation,
        default_version=default,
        versions=versions,
        changed_by=model.by,
        changed_at=time_of(int(model.at_s * US_PER_S)),
        change=model.what,
        **_after_wait(outcome),
    )
    return _with_etag(json_reply(registration, status), model)


async def _traffic(
    services: Services, model: RegisteredModel, outcome: tuple[ChangeState, str] | None = None
) -> Reply:
    routing = model.routing or Traffic()
    results = {}
    if routing.shadow is not None:
        fields = [f"{SHADOW}:{result} {routing.shadow}" for result in ShadowResult]
        (counts,) = await services.queue.read_all([("HMGET", keys.stats(model.name), *fields)])
        results = {
            str(result): int(count or 0) for result, count in zip(ShadowResult, counts, strict=True)
        }
    traffic = ModelTraffic(
        name=model.name,
        generation=model.generation,
        default_version=model.default_version,
        declared=model.traffic is None,
        weights=routing.weights,
        sticky=to_builtins(routing.sticky),
        shadow=routing.shadow,
        shadow_percent=routing.shadow_percent,
        shadow_results=results,
        **_after_wait(outcome),
    )
    return _with_etag(json_reply(traffic), model)


def _after_wait(outcome: tuple[ChangeState, str] | None) -> dict[str, Any]:
    return {} if outcome is None else {"state": outcome[0], "error": outcome[1] or NULL}


def _with_etag(reply: Reply, model: RegisteredModel) -> Reply:
    etag = (b"etag", b'"%d"' % model.generation)
    return reply._replace(headers=(*reply.headers, etag))


class ChangesQuery(msgspec.Struct):
    """The query of the log of changes."""

    limit: Annotated[int, Meta(ge=1, le=_CHANGES_MAX)] = 100


class ModelChanges(msgspec.Struct):
    """The newest changes, the last one first."""

    changes: list[LoggedChange]


async def list_changes(services: Services, request: Request) -> Reply:
    """List the newest changes of all models, the last one first."""
    query = read_query(request, ChangesQuery)
    registry = services.registry
    changes = [] if registry is None else await registry.store.log(query.limit)
    return json_reply(ModelChanges(changes))


async def list_differences(services: Services, _: Request) -> Reply:
    """List where the registered models differ from the models file."""
    different = []
    if services.registry is not None:
        different = differences(await services.registry.read())
    return json_reply(ModelDifferences([_difference(difference) for difference in different]))


def _difference(difference: Difference) -> ModelDifference:
    hidden = difference.option in HIDDEN_OPTIONS
    return ModelDifference(
        model=difference.model,
        version=difference.version,
        option=difference.option or None,
        declared=None if hidden else difference.declared,
        present=None if hidden else difference.present,
    )


async def get_registry_events(services: Services, request: Request) -> StreamingReply:
    """Stream the changes of all models from now, or from the last event that the client has."""
    last_id = last_event_id(request)
    registry = registry_of(services)
    last = last_id if _EVENT_ID.fullmatch(last_id) else await registry.store.log_end()
    # The id alone: a client whose connection is lost before the first change misses none.
    writer = EventWriter(HEAD + b"id: %s\n\n" % last.encode())
    return stream_events(services, request, _changes(registry, last), writer)


@contextlib.contextmanager
def _changes(registry: ModelRegistry, last: str) -> Iterator[_Changes]:
    with registry.listening() as changed:
        yield _Changes(registry, changed, last)


class _Changes:
    def __init__(self, registry: ModelRegistry, changed: asyncio.Event, last: str) -> None:
        self._registry = registry
        self._changed = changed
        self._last = last
        self.wake = changed.set

    @property
    def over(self) -> bool:
        return self._registry.closing

    async def look(self) -> list[StreamEvent]:
        self._changed.clear()
        events = []
        with contextlib.suppress(BrokerError):  # the next look finds them
            for entry, change in await self._registry.store.log_after(self._last):
                events.append(StreamEvent(entry, "change", msgspec.json.encode(change)))
                self._last = entry
        return events

    async def woken(self, seconds: float) -> None:
        await wait_at_most(seconds, self._changed)
