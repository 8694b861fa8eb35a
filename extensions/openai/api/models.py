"""`/v1/models`, by OpenAI's conventions: list, retrieve."""

from __future__ import annotations

import time
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from api.http.messages import Reply, Request, json_reply
from api.services import Services
from headrace.jobs.job import Count

#: When this process began to serve; a model has no date of its own.
_STARTED: Final = int(time.time())


class OpenAIModel(msgspec.Struct, kw_only=True):
    """A model, as OpenAI's API shows it."""

    id: Annotated[str, Meta(description="Its name, for `model` of a request.")]
    object: Literal["model"] = "model"
    created: Annotated[Count, Meta(description="When this API process started.")]
    owned_by: Literal["headrace"] = "headrace"


class OpenAIModels(msgspec.Struct, kw_only=True):
    """Every registered model."""

    object: Literal["list"] = "list"
    data: list[OpenAIModel]


async def list_openai_models(services: Services, request: Request) -> Reply:
    """Return all models, as OpenAI's API shows them."""
    request.query()
    return json_reply(OpenAIModels(data=[_model(one.name) for one in services.catalog.served]))


async def get_openai_model(services: Services, request: Request, model: str) -> Reply:
    """Return one model, as OpenAI's API shows it."""
    request.query()
    return json_reply(_model(services.catalog.get(model).name))


def _model(name: str) -> OpenAIModel:
    return OpenAIModel(id=name, created=_STARTED)
