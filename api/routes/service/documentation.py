"""`GET /docs`: Swagger UI, served by this process alone; `/` redirects to it.

Its files are in `api/static`. Until its script has run, or without scripts, the page lists the
operations.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any, Final

import msgspec
from fastapi import Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import Scope as HttpScope
from typing_extensions import override

from api.http.messages import Delegated, Reply, Request
from api.http.problems import problem
from api.routes.admission import may_read
from api.services import Services
from headrace.errors import PathNotFound

#: In the addresses of its files, so that no browser uses cached files of another version.
SWAGGER_UI_VERSION: Final = "5.35.0"
STATIC_PATH: Final = "/docs/static"


class _Files(StaticFiles):
    """The files of the page; browsers must not guess their types."""

    @override
    async def get_response(self, path: str, scope: HttpScope) -> Response:
        try:
            response = await super().get_response(path, scope)
        except HTTPException:
            path = scope["path"]
            hint = "See /docs for the routes."
            reply = problem(PathNotFound(f"there is nothing at {path[:256]}", hint=hint), path)
            return Response(reply.body, reply.status, media_type=reply.content_type.decode())
        response.headers["x-content-type-options"] = "nosniff"
        return response


static_files: Final = _Files(directory=Path(__file__).parents[2] / "static")

#: Nothing of another origin, no inline script, and no page around this one. Swagger UI draws its
#: icons from data: and shows results that are images from blob:.
POLICY: Final = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'",
        "img-src 'self' data: blob:", "base-uri 'none'", "form-action 'none'",
        "frame-ancestors 'none'",
    )
)  # fmt: skip
_HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_INTRODUCTION: Final = (
    '<p>The forms to try these routes out need JavaScript; <a href="openapi.json">openapi.json</a> '
    "has the details.</p>"
)


async def root(_services: Services, _: Request) -> Reply:
    """Redirect to the documentation."""
    return Reply(307, b"", b"text/plain", headers=((b"location", b"docs"),))


async def page(services: Services, request: Request) -> Reply:
    """Return the page of Swagger UI, with the list of operations."""
    schema = services.describe(with_models=await may_read(services, request))
    return Reply(200, _page(schema).encode(), b"text/html; charset=utf-8", _HEADERS)


async def openapi(services: Services, request: Request) -> Reply:
    """Return the OpenAPI description."""
    described = services.describe(with_models=await may_read(services, request))
    return Reply(200, msgspec.json.encode(described))


async def static(_services: Services, _: Request, _file: str) -> Delegated:
    """Leave a static file to the application."""
    return Delegated()


def _page(schema: dict[str, Any]) -> str:
    title, version = schema["info"]["title"], SWAGGER_UI_VERSION
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/static/swagger-ui/swagger-ui.css?{version}">
<link rel="stylesheet" href="docs/static/docs.css?{version}">
</head>
<body>
<div id="swagger-ui">{plain_list(title, schema)}</div>
<script src="docs/static/swagger-ui/swagger-ui-bundle.js?{version}"></script>
<script src="docs/static/docs.js?{version}"></script>
</body>
</html>
"""


def plain_list(title: str, schema: dict[str, Any]) -> str:
    """Return the operations of an OpenAPI description as a table."""
    rows = [
        f"<tr><td>{method.upper()}</td><td><code>{escape(path)}</code></td>"
        f"<td>{escape(operation.get('summary', ''))}</td></tr>"
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
        if method != "parameters"
    ]
    table = f"<table>{''.join(rows)}</table>"
    return f'<div class="plain"><h1>{escape(title)}</h1>{_INTRODUCTION}{table}</div>'
