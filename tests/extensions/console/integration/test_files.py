"""How the console is served, and what its files may not have."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from extensions.console.api_part import POLICY, STATIC
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer

LINES_MAX = 3500
OURS = sorted(
    path
    for kind in ("py", "js", "css", "html")
    for path in STATIC.parent.rglob(f"*.{kind}")
    if "vendor" not in path.parts
)


@pytest.fixture
def api(redis_db: RedisServer) -> Iterator[ApiServer]:
    with api_server(redis_db.url, catalog(echo={}), auth="on") as server:
        yield server


def test_the_page_and_its_files_are_served_without_a_key(api: ApiServer) -> None:
    page = api.http.get("/console")
    assert page.headers["content-security-policy"] == POLICY
    assert not re.search(r"unsafe|https?:|\*", POLICY)
    assert not re.search(r"<style|style=|<script>|\son\w+=|//", page.text)
    linked = re.findall(r'(?:href|src)="(console/[^"]+)"', page.text)
    assert len(linked) > 5
    for path in linked:
        file = api.http.get(f"/{path}")
        assert file.status_code == 200, path
        assert file.headers["x-content-type-options"] == "nosniff"
        assert "immutable" in file.headers["cache-control"]
        assert file.content == (STATIC / path.split("/", 2)[2]).read_bytes()


def test_browsers_keep_files_and_ask_for_the_page_again(api: ApiServer) -> None:
    page = api.http.get("/console", headers={"Accept-Encoding": "identity"})
    assert page.headers["cache-control"] == "no-cache"
    etag = page.headers["etag"]
    again = api.http.get("/console", headers={"If-None-Match": f'W/"x", {etag}'})
    assert (again.status_code, again.content) == (304, b"")
    with api.http.stream("GET", "/console", headers={"Accept-Encoding": "gzip"}) as packed:
        assert packed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(b"".join(packed.iter_raw())) == page.content
    # The page of another version asks for its own files while servers are replaced.
    other = api.http.get("/console/0123456789abcdef/app.js")
    assert (other.status_code, other.headers["cache-control"]) == (200, "no-cache")


def test_nothing_else_is_served(api: ApiServer) -> None:
    for path in (
        "/x",
        "/x/none.js",
        "/x/..%2fapi_part.py",
        "/x/%2e%2e/api_part.py",
        "/x/vendor",
    ):
        answer = api.http.get(f"/console{path}")
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found"), path
    assert api.http.post("/console/x/app.js").status_code == 401, "as any unknown route"
    moved = api.http.get("/console/")
    assert (moved.status_code, moved.headers["location"]) == (307, "../console")


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_our_files_write_no_html_and_name_no_other_origin(path: Path) -> None:
    text = path.read_text()
    if path.suffix != ".py":
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
        assert re.findall(r"(?:https?:)?//[\w.-]+\.\w{2,}", text) == []


def test_the_console_stays_small() -> None:
    assert sum(len(path.read_text().splitlines()) for path in OURS) <= LINES_MAX
