"""The page of one job, while processes die and with what is long or has stages."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from redis import Redis

from headrace.redis import keys
from headrace.redis.fields import JobField
from tests.extensions.console.harness.deployment import Console, console, opened
from tests.extensions.console.harness.page_checks import HOSTILE
from tests.extensions.console.harness.told import WORDS
from tests.harness.processes.processes import suspend
from tests.harness.servers.up import headrace
from tests.harness.wait import wait_until

TOLD = Path(__file__).parents[1] / "harness" / "told.py"
PIPELINES = {"scored_twice": {"stages": {"first": {"model": "shown"}, "second": {"model": "echo"}}}}
MIB = 1 << 20


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    folder = tmp_path_factory.mktemp("job")
    models: dict[str, Any] = {
        "echo": {"handler": "echo"},
        "told": {"handler": str(TOLD), "options": {"gates": str(folder)}},
    }
    with console(folder, models, PIPELINES) as running:
        yield running


def process(site: Console, part: str) -> int:
    return int(wait_until(lambda: site.up.record()["pids"].get(part), f"{part} runs", 90))


def panel(page: Page, title: str) -> Any:
    return page.locator(".panel", has=page.get_by_role("heading", name=title, exact=True))


def test_a_job_shows_its_input_until_it_ends_and_the_workers_of_its_attempts(
    site: Console, chromium: Browser
) -> None:
    job_id = site.submit("slow")
    with opened(chromium, site, f"/jobs/{job_id}") as watched:
        page = watched.page
        expect(page.get_by_text("waiting at the gate")).to_be_visible()
        expect(panel(page, "Input")).to_contain_text('"text": "slow"')
        first = site.call("GET", f"/api/v1/jobs/{job_id}")["worker"]
        node, _, host = first.rpartition("-")[0].partition("@")
        facts = page.locator(".facts").first
        expect(facts.get_by_role("link", name=node, exact=True)).to_be_visible()
        expect(facts).to_contain_text(host)
        os.kill(process(site, node), signal.SIGKILL)
        rows = page.get_by_role("region", name="Attempts").locator("tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("without a result")
        expect(rows.first).to_contain_text(node)
        site.open_gate()
        expect(page.locator(".head .state")).to_have_text("succeeded")
        expect(panel(page, "Input")).to_contain_text("Inputs are deleted when a job succeeds.")
        job = site.call("GET", f"/api/v1/jobs/{job_id}")
        assert job["earlier_attempts"] == [{"attempt": 1, "worker": first}]
        assert job["worker"] != first
        assert watched.complaints == []


def test_a_stream_resumes_when_the_api_was_killed(site: Console, chromium: Browser) -> None:
    job_id = site.submit("tell", model="told")
    with opened(chromium, site, f"/jobs/{job_id}") as watched:
        page = watched.page
        stream = panel(page, "Stream").locator("pre")
        expect(stream).to_have_text("".join(WORDS[:3]).strip())
        killed = process(site, "api")
        # The port stays open meanwhile: a page would notice a fast restart by luck only.
        suspend(killed)
        expect(page.get_by_text("The connection to the API is lost")).to_be_visible()
        os.kill(killed, signal.SIGKILL)
        expect(stream).to_have_text("".join(WORDS[:3]).strip())
        expect(page.locator("main.stale")).to_have_count(0)
        assert process(site, "api") != killed
        (site.folder / "gate-1").touch()
        expect(stream).to_have_text("".join(WORDS).strip())
        (site.folder / "gate-2").touch()
        expect(page.locator(".head .state")).to_have_text("succeeded")
        expect(panel(page, "Result").locator("pre")).to_contain_text("".join(WORDS).strip())


def test_when_redis_is_lost_the_page_keeps_its_state_and_comes_back(
    site: Console, chromium: Browser
) -> None:
    job_id = site.submit("fine")
    site.ended(job_id)
    with opened(chromium, site, "/") as watched:
        page = watched.page
        model = page.get_by_role("link", name="shown", exact=True)
        expect(model).to_be_visible()
        redis = process(site, "redis")
        suspend(redis)
        try:
            expect(page.get_by_text("The API cannot reach its Redis.")).to_be_visible()
            expect(page.locator("main.stale")).to_be_visible()
            expect(model).to_be_visible()
        finally:
            os.kill(redis, signal.SIGCONT)
        expect(page.locator("main.stale")).to_have_count(0)
        expect(page.get_by_text("The API cannot reach its Redis.")).to_have_count(0)
        page.evaluate("id => { location.hash = `#/jobs/${id}` }", job_id)
        expect(page.locator(".head .state")).to_have_text("succeeded")


def test_a_long_result_and_long_metadata_leave_the_page_usable(
    site: Console, chromium: Browser
) -> None:
    value = {"rows": [[n, n + 0.5] for n in range(20_000)], "text": f"{HOSTILE} {'y' * MIB}"}
    document = {"model": "echo", "input": value}
    job_id = str(site.call("POST", "/api/v1/jobs", document)["id"])
    assert site.ended(job_id)["status"] == "succeeded"
    # The API takes 4 KiB; what another client of Redis writes may be longer.
    url = headrace("url", "--state-dir", str(site.up.state_dir), cwd=site.folder).stdout.strip()
    with Redis.from_url(url) as redis:
        long = json.dumps({"note": f"{HOSTILE} {'z' * MIB}"})
        redis.hset(keys.job(job_id), JobField.METADATA, long)
    with opened(chromium, site, f"/jobs/{job_id}") as watched:
        page = watched.page
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        result, metadata = panel(page, "Result"), panel(page, "Metadata")
        result.get_by_role("button", name="Load").click()
        expect(result.locator(".chip")).to_contain_text(re.compile("20000 . 2"))
        for shown, letter in ((result, "y"), (metadata, "z")):
            shown.get_by_role("button", name="Show all").click()
            length = "(pre, letter) => pre.textContent.split(letter).length - 1"
            assert shown.locator("pre").evaluate(length, letter) >= MIB
            expect(shown.locator("pre")).to_contain_text("⟨202E⟩abc")
        assert page.locator("main img, main script").count() == 0
        page.keyboard.press("g")
        page.keyboard.press("j")
        expect(page.get_by_role("link", name=job_id[-12:])).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
        assert watched.complaints == []


def test_long_integers_are_shown_as_they_are(site: Console, chromium: Browser) -> None:
    value = {"order": 9007199254740993, "share": 0.12345678901234567, "scores": [1, 2, 3]}
    job_id = str(site.call("POST", "/api/v1/jobs", {"model": "echo", "input": value})["id"])
    site.ended(job_id)
    with opened(chromium, site, f"/jobs/{job_id}") as watched:
        result = panel(watched.page, "Result")
        expect(result.locator(".chip")).to_contain_text("scores")
        assert json.loads(str(result.locator("pre").text_content())) == value


def test_the_job_of_a_pipeline_shows_its_stages(site: Console, chromium: Browser) -> None:
    job_id = site.submit("good morning", model="scored_twice")
    assert site.ended(job_id)["status"] == "succeeded"
    with opened(chromium, site, f"/jobs/{job_id}") as watched:
        page = watched.page
        stages = panel(page, "Stages")
        expect(stages.locator(".state")).to_have_text(["succeeded", "succeeded"])
        expect(stages).to_contain_text("shown, 1 of 1")
        expect(stages.get_by_role("img", name="Times of its stages")).to_have_count(2)
        expect(panel(page, "Result")).to_contain_text('"label": "negative"')
        assert watched.complaints == []
