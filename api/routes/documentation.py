"""`GET /docs`: the routes, readable anywhere, and to be tried out where Swagger UI can be loaded.

Swagger UI comes from a public server that a machine without internet does not reach; what stands
in its place until it is loaded is therefore a list that needs nothing but this process.
"""

from __future__ import annotations

from html import escape
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse

router = APIRouter(include_in_schema=False)

_PLACE: Final = '<div id="swagger-ui">'
_STYLE: Final = (
    "<style>.plain{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    ".plain td{padding:.2em 1em .2em 0;vertical-align:top}</style>"
)
_INTRODUCTION: Final = (
    "<p>The forms to try these routes out are loaded from cdn.jsdelivr.net. While that is not "
    'reached, this list stands here; <a href="/openapi.json">/openapi.json</a> has the details.</p>'
)


@router.get("/docs")
async def documentation(request: Request) -> HTMLResponse:
    """Swagger UI, and behind it the list."""
    app = request.app
    page = get_swagger_ui_html(
        openapi_url="/openapi.json", title=app.title, swagger_favicon_url="data:,"
    )
    html = bytes(page.body).decode()
    return HTMLResponse(html.replace(_PLACE, _PLACE + plain_list(app.title, app.openapi()), 1))


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
    return f'{_STYLE}<div class="plain"><h1>{escape(title)}</h1>{_INTRODUCTION}{table}</div>'
