"""The files in OpenAPI: routes and schemas."""

from __future__ import annotations

from typing import Any, Final

from api.openapi.openai import ERROR_SCHEMAS, openai_list, openai_operation, page_parameters
from api.openapi.operations import answer, path_parameter
from api.openapi.shapes import COUNT, STRING, Schema, nullable, object_of, ref
from api.routes.openai.files import ANCHOR, PAGE_MAX
from headrace.batches.files.record import BATCH, KEEP_MAX_S, PURPOSES

_TAG: Final = "files"
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
            "created_at": {**COUNT, "description": "Seconds since 1970, as all times here."},
            "expires_at": {**COUNT, "description": "When it will be gone."},
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


def file_paths() -> dict[str, Any]:
    """The paths of files."""
    one = ("file-not-found",)
    return {
        "/v1/files": {"get": _list(), "post": _create()},
        "/v1/files/{file_id}": {
            "parameters": [path_parameter("file_id")],
            "get": openai_operation(
                "get_file",
                "One file, without its content",
                _TAG,
                {"200": answer("The file.", ref("File"))},
                one,
            ),
            "delete": openai_operation(
                "delete_file",
                "Delete a file",
                _TAG,
                {"200": answer("It is gone.", ref("FileDeleted"))},
                one,
            ),
        },
        "/v1/files/{file_id}/content": {
            "parameters": [path_parameter("file_id")],
            "get": openai_operation(
                "get_file_content",
                "The bytes of a file",
                _TAG,
                {
                    "200": {
                        "description": "All of them.",
                        "content": {
                            "application/octet-stream": {
                                "schema": {"type": "string", "format": "binary"},
                                "example": '{"custom_id": "a"}\n',
                            }
                        },
                    }
                },
                one,
            ),
        },
    }


def _list() -> dict[str, Any]:
    order = {"enum": ["asc", "desc"], "default": "desc"}
    return openai_operation(
        "list_files",
        "List files",
        _TAG,
        {"200": answer("A page.", ref("Files"))},
        parameters=[
            *page_parameters(PAGE_MAX, PAGE_MAX),
            {"name": "order", "in": "query", "schema": order, "description": "By `created_at`."},
            {"name": "purpose", "in": "query", "schema": STRING},
        ],
    )


def _create() -> dict[str, Any]:
    form = object_of(
        {
            "file": {"type": "string", "format": "binary"},
            "purpose": {"enum": [BATCH]},
            "expires_after[anchor]": {"const": ANCHOR},
            "expires_after[seconds]": {"type": "integer", "minimum": 1, "maximum": KEEP_MAX_S},
        },
        optional=("expires_after[anchor]", "expires_after[seconds]"),
        additionalProperties=False,
        dependentRequired={
            "expires_after[anchor]": ["expires_after[seconds]"],
            "expires_after[seconds]": ["expires_after[anchor]"],
        },
    )
    body = {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": form,
                "example": {"file": '{"custom_id": "a"}\n', "purpose": BATCH},
            }
        },
    }
    return openai_operation(
        "create_file",
        "Upload a file",
        _TAG,
        {"200": answer("The file, which is there from now on.", ref("File"))},
        ("payload-too-large", "unsupported-media", "payload-storage-full", "broker-full"),
        requestBody=body,
    )
