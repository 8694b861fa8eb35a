"""The registered models, their traffic, and what differs from the models file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from headrace.jobs.ids import ModelName
from headrace.jobs.job import Amount, Count
from headrace.schema.members import Moment, Word

# With `wait`: how far the workers are.
_State = Annotated[
    Word,
    Meta(
        description="With `wait`: whether the workers serve the change, or cannot load it.",
        extra_json_schema={"enum": ["failed", "pending", "ready"]},
    ),
]
# Null if no load failed.
_Error = Annotated[
    str | None,
    Meta(
        extra_json_schema={
            "type": ["string", "null"],
            "description": "With `wait`: the traceback of a failed load.",
        },
    ),
]
if TYPE_CHECKING:
    _Sticky = dict[str, str] | None
else:
    _Sticky = Annotated[
        Any,
        Meta(
            extra_json_schema={
                "description": "What a user is recognised by.",
                "anyOf": [{"$ref": "#/components/schemas/Sticky"}, {"type": "null"}],
            }
        ),
    ]


class RegisteredVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a registered model."""

    version: str
    default: Annotated[bool, Meta(description="Jobs that name no version run on it.")]
    declared: Annotated[bool, Meta(description="The models file has it.")]
    changed: Annotated[
        dict[str, Any],
        Meta(description="Options that were changed over the API, without files and secrets."),
    ]
    loads: Annotated[Count, Meta(description="How many reloads were requested.")]
    unserved: Annotated[
        str | None, Meta(description="Why no worker takes it; null: one can, or serves it.")
    ]


class Registration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A registered model with its versions."""

    name: ModelName
    generation: Annotated[Count, Meta(description="Changes with it; for `If-Match`.")]
    default_version: str
    versions: list[RegisteredVersion]
    changed_by: str
    changed_at: Moment
    change: str
    state: _State = ""
    error: _Error = None


class ModelTraffic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the jobs of a model go that name no version."""

    name: ModelName
    generation: Annotated[Count, Meta(description="Changes with the model; for `If-Match`.")]
    default_version: Annotated[str, Meta(description="It runs such jobs without any weights.")]
    declared: Annotated[bool, Meta(description="The models file decides, and not the API.")]
    weights: Annotated[dict[str, float], Meta(description="The share of each version.")]
    sticky: _Sticky
    shadow: Annotated[str | None, Meta(description="The version that gets copies of such jobs.")]
    shadow_percent: Annotated[Amount, Meta(description="How many of the jobs are copied.")]
    shadow_results: Annotated[
        dict[str, Count],
        Meta(
            description="How the copies have ended: `equal`, `different`, `failed`, `dropped` and "
            "`unknown`; without a shadow version empty."
        ),
    ]
    state: _State = ""
    error: _Error = None


class ModelDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One place where the registry differs from the models file."""

    model: ModelName
    version: str
    option: Annotated[
        str | None,
        Meta(
            description="Null: the models file does not have this version. `version`: it has, and "
            "the version was removed."
        ),
    ]
    declared: Annotated[
        Any, Meta(description="Its value in the models file; null: none, or it is not shown.")
    ]
    present: Annotated[Any, Meta(description="The value that holds; null: it is not shown.")]


class ModelDifferences(msgspec.Struct):
    """Where the registry differs from the models file."""

    differences: list[ModelDifference]
