"""`GET /docs`: the routes, to be read and tried out, from this process alone; `/` leads there.

Swagger UI and its style lie in `api/static`; until its script has run (or where scripts are off) a
list of the routes stands in its place.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from starlette.types import Scope
from typing_extensions import override

router = APIRouter(include_in_schema=False)

#: In the addresses of its files, so that no browser keeps those of an older one.
SWAGGER_UI_VERSION: Final = "5.35.0"
STATIC_PATH: Final = "/docs/static"


class _Files(StaticFiles):
    """Files that no browser takes for anything but what they say they are."""

    @override
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["x-content-type-options"] = "nosniff"
        return response


static_files: Final = _Files(directory=Path(__file__).parents[2] / "static")

#: Nothing from elsewhere, no script but ours and Swagger UI's, and no page around this one. Swagger
#: UI draws its icons from data: and shows a result that is an image from blob:.
POLICY: Final = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'",
        "img-src 'self' data: blob:", "base-uri 'none'", "form-action 'none'",
        "frame-ancestors 'none'",
    )
)  # fmt: skip
_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_INTRODUCTION: Final = (
    '<p>The forms to try these routes out need JavaScript; <a href="openapi.json">openapi.json</a> '
    "has the details.</p>"
)


@router.get("/")
async def root() -> RedirectResponse:
    """To the documentation: whoever opens the server's address in a browser asks for this."""
    return RedirectResponse("docs")


@router.get("/docs")
async def documentation(request: Request) -> HTMLResponse:
    """Swagger UI, and behind it the list."""
    app = request.app
    return HTMLResponse(_page(app.title, app.openapi()), headers=_HEADERS)


def _page(title: str, schema: dict[str, Any]) -> str:
    version = SWAGGER_UI_VERSION
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
    """Every route of an OpenAPI description in a table."""
    rows = [
        f"<tr><td>{method.upper()}</td><td><code>{escape(path)}</code></td>"
        f"<td>{escape(operation.get('summary', ''))}</td></tr>"
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
        if method != "parameters"
    ]
    table = f"<table>{''.join(rows)}</table>"
    return f'<div class="plain"><h1>{escape(title)}</h1>{_INTRODUCTION}{table}</div>'
