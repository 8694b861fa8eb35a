"""The registry: who changed what, and what differs from the models file."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from api.http.messages import Reply, Request, json_reply
from api.services import Services
from api.submission.decoding import read_query
from headrace.registry.model import HIDDEN_OPTIONS, Difference, differences
from headrace.registry.store import LoggedChange
from headrace.schema.registry import ModelDifference, ModelDifferences

CHANGES: Final = "/api/v1/registry/changes"
DIFFERENCES: Final = "/api/v1/registry/differences"
_LOG_MAX: Final = 1000


class ChangesQuery(msgspec.Struct):
    """The query of the log of changes."""

    limit: Annotated[int, Meta(ge=1, le=_LOG_MAX)] = 100


class ModelChanges(msgspec.Struct):
    """The newest changes, the last one first."""

    changes: list[LoggedChange]


async def list_changes(services: Services, request: Request) -> Reply:
    """List the newest changes of all models, the last one first."""
    query = read_query(request, ChangesQuery)
    found = await services.registry.log(query.limit) if services.registry is not None else []
    return json_reply(ModelChanges(found))


async def list_differences(services: Services, _: Request) -> Reply:
    """List where the registered models differ from the models file."""
    found = []
    if services.registry is not None:
        found = differences(await services.registry.read())
    return json_reply(ModelDifferences([_difference(one) for one in found]))


def _difference(one: Difference) -> ModelDifference:
    hidden = one.option in HIDDEN_OPTIONS
    return ModelDifference(
        model=one.model,
        version=one.version,
        option=one.option or None,
        declared=None if hidden else one.declared,
        present=None if hidden else one.present,
    )
