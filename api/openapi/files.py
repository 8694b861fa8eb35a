"""Files in OpenAPI: operations and schemas."""

from __future__ import annotations

from typing import Final

from api.openapi.openai import ERROR_SCHEMAS, openai_list, page_parameters
from api.openapi.operations import (
    BINARY,
    COUNT,
    STRING,
    Description,
    Descriptions,
    Schema,
    described,
    nullable,
    object_of,
    ok,
    parameter,
    ref,
)
from api.routes.openai.files import ANCHOR, PAGE_MAX
from headrace.batches.files.record import BATCH, KEEP_MAX_S, PURPOSES

_FILE: Final = {
    "id": "file-0193f1a2b3c47d5e8f60718293a4b5c6", "object": "file", "bytes": 1204,
    "created_at": 1795279329, "expires_at": 1797871329, "filename": "requests.jsonl",
    "purpose": "batch", "status": "processed", "status_details": None,
}  # fmt: skip

FILE_SCHEMAS: Final[dict[str, Schema]] = {
    **ERROR_SCHEMAS,
    "File": object_of(
        {
            "id": STRING,
            "object": {"const": "file"},
            "bytes": COUNT,
            "created_at": described(COUNT, "Seconds since 1970, like all times here."),
            "expires_at": described(COUNT, "When it is deleted."),
            "filename": STRING,
            "purpose": {"enum": list(PURPOSES)},
            "status": {"const": "processed"},
            "status_details": nullable(STRING),
        },
        examples=[_FILE],
    ),
    "Files": openai_list(ref("File"), _FILE),
    "FileDeleted": object_of(
        {"id": STRING, "object": {"const": "file"}, "deleted": {"const": True}},
        examples=[{"id": _FILE["id"], "object": "file", "deleted": True}],
    ),
}


_ORDER: Final = {"enum": ["asc", "desc"], "default": "desc"}
_ANCHOR: Final = "expires_after[anchor]"
_SECONDS: Final = "expires_after[seconds]"
_FORM: Final = object_of(
    {
        "file": BINARY,
        "purpose": {"enum": [BATCH]},
        _ANCHOR: {"const": ANCHOR},
        _SECONDS: {"type": "integer", "minimum": 1, "maximum": KEEP_MAX_S},
    },
    optional=(_ANCHOR, _SECONDS),
    additionalProperties=False,
    dependentRequired={_ANCHOR: [_SECONDS], _SECONDS: [_ANCHOR]},
)
_LINE: Final = '{"custom_id": "a"}\n'
_CONTENT: Final = {"schema": BINARY, "example": _LINE}
_UPLOAD: Final = {"schema": _FORM, "example": {"file": _LINE, "purpose": BATCH}}
_ONE: Final = ("file-not-found",)

FILE_OPERATIONS: Final[Descriptions] = {
    "list_files": Description(
        "List files",
        ok("A page.", "Files"),
        parameters=[
            *page_parameters(PAGE_MAX, PAGE_MAX),
            parameter("order", _ORDER, "By `created_at`."),
            parameter("purpose", STRING),
        ],
    ),
    "create_file": Description(
        "Upload a file",
        ok("The file, which now exists.", "File"),
        ("payload-too-large", "unsupported-media", "payload-storage-full", "broker-full"),
        body={"required": True, "content": {"multipart/form-data": _UPLOAD}},
    ),
    "get_file": Description("One file, without its content", ok("The file.", "File"), _ONE),
    "delete_file": Description("Delete a file", ok("It is deleted.", "FileDeleted"), _ONE),
    "get_file_content": Description(
        "The bytes of a file",
        {"200": {"description": "All of them.", "content": {"application/octet-stream": _CONTENT}}},
        _ONE,
    ),
}
