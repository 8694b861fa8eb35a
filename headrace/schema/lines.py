"""A job as JSON: the body of a submit, and a line of a bulk request.

The API and batches read it, and the client writes it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.jobs.ids import ID, ModelName
from headrace.jobs.options import DEFAULT_OPTIONS, JobOptions

REFERENCE_MAX_CHARS: Final = 4096
CONTENT_TYPE_MAX_CHARS: Final = 255
#: The parts of a path or key are not empty, and neither `.` nor `..`. InputRefs checks more.
_INPUT_REF: Final = (
    r"^(file:(/(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]+)+"
    r"|s3://[A-Za-z0-9][A-Za-z0-9._-]{1,62}(/(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]+)+)$"
)
_CONTENT_TYPE: Final = r"^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(;[\x20-\x7e]*)?$"
#: Patterns are for the API's description; the checks by code have better messages.
_OwnId = Annotated[str, Meta(extra_json_schema={"pattern": ID, "not": {"enum": [".", ".."]}})]
_Reference = Annotated[
    str, Meta(extra_json_schema={"pattern": _INPUT_REF, "maxLength": REFERENCE_MAX_CHARS})
]
_ContentType = Annotated[
    str, Meta(extra_json_schema={"pattern": _CONTENT_TYPE, "maxLength": CONTENT_TYPE_MAX_CHARS})
]


class NamedJobRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The JSON of a submit under the id in the path."""

    model: ModelName
    input: Annotated[
        msgspec.Raw | UnsetType, Meta(description="Any JSON, or {content_type, base64} for bytes.")
    ] = UNSET
    input_ref: Annotated[
        _Reference | None,
        Meta(
            description="Instead of input: file:/folder/name or s3://bucket/key, a file or object "
            "of the operator."
        ),
    ] = None
    content_type: Annotated[
        _ContentType | None,
        Meta(
            description="The content type of the file of input_ref; by default derived from its "
            "name."
        ),
    ] = None
    version: Annotated[
        str | None,
        Meta(
            description="Run it on this version only; the request is refused if neither a worker "
            "nor the models file has it."
        ),
    ] = None
    parameters: Annotated[
        dict[str, Any] | None,
        Meta(
            description="Values for the parameters that the model declares, by name; "
            "`GET /api/v1/models/{model}` lists them.",
        ),
    ] = None
    options: JobOptions = DEFAULT_OPTIONS


class JobRequest(NamedJobRequest, forbid_unknown_fields=True, omit_defaults=True):
    """The JSON of a submit."""

    id: Annotated[
        _OwnId | None, Meta(description="The job's id; by default the server makes one.")
    ] = None


class BulkLineRequest(JobRequest, forbid_unknown_fields=True, omit_defaults=True):
    """A line of a bulk request.

    Attributes:
        traceparent: this job's place in a trace, instead of the request's header.
    """

    traceparent: str | None = None
