"""`/docs` in a real browser: complete, usable, and with no request to anywhere else."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from api.routes.service.documentation import POLICY, SWAGGER_UI_VERSION
from tests.harness.fakes.worker import Answer, FakeWorker, claim, settle
from tests.harness.http.browser import browser_page
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.up import ROOT

STATIC = ROOT / "api" / "static"


@pytest.fixture
def api(redis_db: RedisServer) -> Iterator[ApiServer]:
    with api_server(redis_db.url, catalog(echo={})) as server:
        yield server


def operations(api: ApiServer) -> list[dict[str, Any]]:
    paths = api.http.get("/openapi.json").json()["paths"]
    return [
        operation
        for methods in paths.values()
        for method, operation in methods.items()
        if method != "parameters"
    ]


def test_every_route_is_shown_jobs_are_tried_out_and_nothing_is_asked_for_elsewhere(
    api: ApiServer, redis_db: RedisServer, chromium: Browser
) -> None:
    with FakeWorker(redis_db.url, "echo"), browser_page(chromium) as watched:
        page = watched.page
        page.goto(f"{api.url}/docs")
        page.wait_for_selector(".opblock")
        told = api.http.get("/openapi.json").json()["webhooks"]
        expect(page.locator(".opblock")).to_have_count(len(operations(api)) + len(told))
        # Swagger UI 4 gives up on OpenAPI 3.1; this one says which it reads.
        expect(page.locator(".version-stamp", has_text="OAS 3.1")).to_have_count(1)
        # Some of all: to show an operation takes the browser a second of CPU.
        for tried in ("submit_job", "submit_input_post"):
            try_out(page.locator(f"[id=operations-jobs-{tried}]"))
        others = page.locator(".opblock-tag-section:not(:has([id^=operations-jobs-]))")
        assert others.count() > 1
        others.first.locator(".opblock-summary-control").first.click()
        expect(page.locator(".opblock-body")).to_have_count(3)
        page.wait_for_load_state("networkidle")
        assert watched.complaints == []
        assert watched.requests
        strangers = [url for url in watched.requests if not url.startswith((api.url, "data:"))]
        assert strangers == []
    # Nor could the others ask for anything: no description brings an image or a script.
    assert not re.search(
        r"!\[|<(img|i?frame|link|script|style|video|audio|object|embed|svg)",
        json.dumps(api.http.get("/openapi.json").json()),
    )


def try_out(block: Locator) -> None:
    """As it stands there: its own example, and no more than a click."""
    block.locator(".opblock-summary-control").click()
    block.locator(".try-out__btn").click()
    block.locator(".execute").click()
    answer = block.locator(".live-responses-table tr.response")
    answer.wait_for()
    assert answer.locator(".response-col_status").inner_text().strip() == "200"
    assert re.search(r'"result": \{\s*"x": 1', answer.inner_text())


def test_without_scripts_it_is_a_list(api: ApiServer, chromium: Browser) -> None:
    with browser_page(chromium, scripts=False) as watched:
        watched.page.goto(f"{api.url}/docs")
        text = watched.page.locator(".plain").inner_text()
        for operation in operations(api):
            assert operation["summary"] in text


def test_its_policy_allows_no_other_origin(api: ApiServer) -> None:
    answer = api.http.get("/docs")
    assert answer.headers["content-security-policy"] == POLICY
    assert not re.search(r"unsafe|https?:|\*", POLICY)
    assert POLICY.startswith("default-src 'none'")
    assert not re.search(r"<style|style=|<script>|\son\w+=|//", answer.text)


def test_a_result_that_is_a_page_runs_nothing(
    api: ApiServer, redis_db: RedisServer, chromium: Browser
) -> None:
    hostile = (
        "<!doctype html><title>untouched</title>"
        "<script>document.title = 'ran'; fetch('/api/v1/queues')</script>"
    )
    location = api.http.post("/api/v1/models/echo/jobs", json=1).headers["location"]
    with redis_db.client() as client:
        claimed = claim(client, "echo")
        settle(client, "echo", claimed, [html_answer(hostile)])
    answer = api.http.get(f"{location}/result")
    assert (answer.headers["content-type"], answer.text) == ("text/html", hostile)
    with browser_page(chromium) as watched:
        watched.page.goto(f"{api.url}{location}/result")
        assert watched.page.title() == "untouched"
        assert watched.requests == [f"{api.url}{location}/result"]


def html_answer(text: str) -> Answer:
    encoded = base64.b64encode(text.encode()).decode()
    stored = f'{{"__type__": "base64", "__value__": "{encoded}"}}'
    return Answer(result=stored.encode(), extra="rt", value="text/html")


def test_the_version_that_is_named_is_the_one_that_lies_there() -> None:
    readme = (STATIC / "swagger-ui" / "README.md").read_text()
    assert f"swagger-ui-dist {SWAGGER_UI_VERSION} " in readme
    script = (STATIC / "swagger-ui" / "swagger-ui-bundle.js").read_text()
    assert f'"{SWAGGER_UI_VERSION}"' in script
    assert "Apache License" in (STATIC / "swagger-ui" / "LICENSE").read_text()


def test_its_files_are_served_and_no_others(api: ApiServer) -> None:
    answer = api.http.get("/docs/static/swagger-ui/swagger-ui-bundle.js")
    assert answer.headers["content-type"].startswith("text/javascript")
    again = api.http.get(
        "/docs/static/swagger-ui/swagger-ui-bundle.js",
        headers={"If-None-Match": answer.headers["etag"]},
    )
    assert again.status_code == 304
    refused = api.http.post("/docs/static/docs.css")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
    for path in ("", "/", "/none", "/..%2fapp.py", "/%2e%2e/app.py", "/swagger-ui"):
        answer = api.http.get(f"/docs/static{path}")
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")
