"""`/console`: the page, and the files of `static/`.

The address of each file has a hash over all files, so browsers keep them for a year, and a new
version has new addresses. The page itself has an ETag. Nothing here needs an API key: the page asks
for one, and keeps it in its tab.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from api.auth.authenticator import Open
from api.extension import ApiPart
from api.http.messages import Header, Reply, Request
from api.routes.table import Operation
from api.services import Services
from headrace.errors import PathNotFound

PATH: Final = "/console"
STATIC: Final = Path(__file__).parent / "static"
#: The page has it in place of the folder in which its files are.
_PLACE: Final = "@files@"

#: Nothing of another origin, no inline script or style, and no page around this one. Results that
#: are images come as blob: or data:.
POLICY: Final = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'",
        "img-src 'self' blob: data:", "base-uri 'none'", "form-action 'none'",
        "frame-ancestors 'none'",
    )
)  # fmt: skip
_SAFE: Final[Sequence[Header]] = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"vary", b"accept-encoding"),
)
_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_REVALIDATE: Final = (b"cache-control", b"no-cache")
_FOR_EVER: Final = (b"cache-control", b"public, max-age=31536000, immutable")


class _File(NamedTuple):
    content_type: bytes
    body: bytes
    gzipped: bytes
    etag: bytes


class _Files(NamedTuple):
    """The files by their paths, and the hash over all of them."""

    by_path: dict[str, _File]
    version: str


@cache
def files() -> _Files:
    """Return the files as they are served, read once in a process."""
    bodies = {
        str(path.relative_to(STATIC)): path.read_bytes()
        for path in sorted(STATIC.rglob("*"))
        if path.suffix in _TYPES
    }
    digest = hashlib.sha256()
    for path, body in bodies.items():
        digest.update(b"%d %s %d " % (len(path), path.encode(), len(body)) + body)
    version = digest.hexdigest()[:16]
    page = bodies["index.html"].replace(_PLACE.encode(), f"console/{version}".encode())
    bodies["index.html"] = page
    return _Files({path: _file(path, body) for path, body in bodies.items()}, version)


def _file(path: str, body: bytes) -> _File:
    etag = hashlib.sha256(body).hexdigest()[:16]
    return _File(
        _TYPES[Path(path).suffix], body, gzip.compress(body, mtime=0), f'"{etag}"'.encode()
    )


async def page(_services: Services, request: Request) -> Reply:
    """Return the console."""
    return _reply(request, files().by_path["index.html"], _REVALIDATE)


async def static(_services: Services, request: Request, name: str) -> Reply:
    """Return a file of the console."""
    if not name:
        return Reply(307, b"", b"text/plain", ((b"location", b"../console"),))
    version, _, path = name.partition("/")
    found = files().by_path.get(path)
    if found is None:
        raise PathNotFound(
            f"there is nothing at {request.path[:256]}", hint="The console is at /console."
        )
    # The page of another version asks while servers are replaced: it gets these, but keeps none.
    return _reply(request, found, _FOR_EVER if version == files().version else _REVALIDATE)


def _reply(request: Request, file: _File, caching: Header) -> Reply:
    headers = (*_SAFE, caching, (b"etag", file.etag))
    if file.etag in request.header(b"if-none-match"):
        return Reply(304, b"", headers=headers)
    if b"gzip" in request.header(b"accept-encoding"):
        encoded = (*headers, (b"content-encoding", b"gzip"))
        return Reply(200, file.gzipped, file.content_type, encoded)
    return Reply(200, file.body, file.content_type, headers)


PART: Final = ApiPart(
    routes=[
        Operation("GET", PATH, page, Open.ALWAYS),
        Operation("GET", PATH + "/{file:path}", static, Open.ALWAYS),
    ]
)
