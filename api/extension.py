"""What an extension adds to the API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from api.http.messages import Receive, Reply, Scope, Send
from api.routes.media import EXAMPLES, Examples, PathParameter
from api.routes.table import PATH_PARAMETERS, TABLE, Operation
from api.services import Part, Services
from headrace.config.extensions import parts
from headrace.config.model.catalog import ModelConfig
from headrace.errors import HeadraceError

Members = Mapping[str, Any]


class Service(Protocol):
    """What an extension adds to the services of a process."""

    def close(self) -> None:
        """Close its connections, after the last request."""


class Surface(Protocol):
    """Answers requests before the router, such as those of another server's clients."""

    async def start(self) -> None:
        """Start with the process."""

    async def stop(self) -> None:
        """Close the connections."""

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer a request; return False to leave it to the router."""


@dataclass(frozen=True, kw_only=True)
class ApiPart:
    """What an extension adds to each API process.

    Attributes:
        routes: rows of the table of operations, and of the API's description.
        path_parameters: those of the paths, by name.
        tags: the groups in which the description shows them, with a sentence each.
        error_form: which form the errors of some paths have, for the description.
        service: builds what its endpoints share in one process; they get it by `Services.of`.
        parts: builds what else starts and stops with the process, such as a server for another
            protocol. It raises ConfigError if the settings ask for what cannot be.
        surface: builds its surface; None if the settings do not ask for it. It may observe the
            counters, require tokens of native requests, and add what its endpoints share to
            `Services.added`.
        error_reply: returns an error in the form that the clients of a path expect; None for a
            path that is not of this extension.
        hint: returns what to use in place of an unknown path; None if it knows nothing better.
        header_prefixes: how request headers begin that pages of other origins may send.
        examples: those of its types in the description, by the name of the type.
        model_members: returns what clients of its kind read of a model at `/v1/models/{model}`, or,
            for None, of all models at `/v1/models`. The clients of several kinds share these paths.
    """

    routes: Sequence[Operation] = ()
    path_parameters: Mapping[str, PathParameter] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    error_form: str = ""
    service: Callable[[Services], Service] | None = None
    parts: Callable[[Services], Sequence[Part]] | None = None
    surface: Callable[[Services], Surface | None] | None = None
    error_reply: Callable[[str, HeadraceError], Reply | None] | None = None
    hint: Callable[[str, str], str | None] | None = None
    header_prefixes: tuple[str, ...] = ()
    examples: Examples = field(default_factory=dict)
    model_members: Callable[[Services, ModelConfig | None], Awaitable[Members]] | None = None


@cache
def api_parts() -> tuple[ApiPart, ...]:
    """Return the parts of all extensions."""
    return tuple(parts("api", ApiPart).values())


def add_services(services: Services) -> None:
    """Add what the endpoints of the extensions share."""
    for build in (part.service for part in api_parts() if part.service is not None):
        service = build(services)
        services.added[type(service)] = service
        services.parts.append(Part(service.close))
    for parts_of in (part.parts for part in api_parts() if part.parts is not None):
        services.parts += parts_of(services)


def surfaces_of(services: Services) -> list[Surface]:
    """Return the surfaces that the settings ask for; raise ConfigError if one cannot be built."""
    builders = [part.surface for part in api_parts() if part.surface is not None]
    return [surface for build in builders if (surface := build(services)) is not None]


def hint_of(method: str, path: str) -> str:
    """Return what to use in place of an unknown path; "" if no extension knows anything better."""
    hints = (part.hint(method, path) for part in api_parts() if part.hint is not None)
    return " ".join(filter(None, hints))


async def model_members(services: Services, model: ModelConfig | None) -> dict[str, Any]:
    """Return what all extensions add to the object of a model, or, for None, to that of all."""
    found: dict[str, Any] = {}
    for part in api_parts():
        if part.model_members is not None:
            found |= await part.model_members(services, model)
    return found


@cache
def operations() -> tuple[Operation, ...]:
    """Return all operations: those of the core, then those of the extensions."""
    return (*TABLE, *(row for part in api_parts() for row in part.routes))


@cache
def path_parameters() -> dict[str, PathParameter]:
    """Return the parameters of all paths, by name."""
    own = [part.path_parameters for part in api_parts()]
    return {name: row for rows in (PATH_PARAMETERS, *own) for name, row in rows.items()}


@cache
def examples() -> Examples:
    """Return the examples of all types of the description, by the name of the type."""
    own = [part.examples for part in api_parts()]
    return {name: shown for rows in (EXAMPLES, *own) for name, shown in rows.items()}
