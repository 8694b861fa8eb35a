"""Failures, runs, batches, workers, webhooks, keys and the audit log, in a browser."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from headrace.webhooks.signing import new_secret
from tests.extensions.console.harness.deployment import Console, console, opened
from tests.extensions.console.harness.page_checks import HOSTILE, fits_and_is_for_people
from tests.harness.servers.webhook_receiver import Receiver, webhook_receiver
from tests.harness.wait import wait_until

RUN = {
    "model": "shown", "name": HOSTILE, "source": "/data/scans", "output": "/data/out.jsonl",
    "total": 1000, "succeeded": 400, "failed": 17, "per_second": 12.5, "host": HOSTILE,
    "command": ["headrace", "run", "shown"], "folder": "/data", "state": "running",
}  # fmt: skip
BOUNDARY = "a-boundary"


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with webhook_receiver() as running:
        yield running


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    flags: dict[str, Any] = {
        "HEADRACE_WEBHOOK_SECRETS": new_secret(),
        "HEADRACE_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8",
        "HEADRACE_WEBHOOK_ALLOW_HTTP": "true",
        "runner": True,
    }
    with console(tmp_path_factory.mktemp("system"), **flags) as running:
        yield running


def fail(site: Console, count: int, text: str = "raise it") -> None:
    for job_id in [site.submit(text) for _ in range(count)]:
        assert site.ended(job_id)["status"] == "failed"


def batch(site: Console, texts: list[str]) -> str:
    """A batch of these inputs, once it has ended; its id."""
    rows = [
        {"custom_id": f"row-{n}", "method": "POST", "url": "/api/v1/models/shown/jobs",
         "body": {"text": text}}
        for n, text in enumerate(texts)
    ]  # fmt: skip
    file = "\n".join(map(json.dumps, rows))
    part = f"--{BOUNDARY}\r\nContent-Disposition: form-data; name="
    form = (
        f'{part}"purpose"\r\n\r\nbatch\r\n{part}"file"; filename="in.jsonl"\r\n\r\n{file}\n\r\n'
        f"--{BOUNDARY}--\r\n"
    )
    headers = {
        "Authorization": f"Bearer {site.keys['all']}",
        "Content-Type": f"multipart/form-data; boundary={BOUNDARY}",
    }
    status, uploaded = site.up.request("POST", "/v1/files", form.encode(), **headers)
    assert status == 200, uploaded
    wanted = {
        "input_file_id": uploaded["id"], "endpoint": "/api/v1/models/shown/jobs",
        "completion_window": "24h",
    }  # fmt: skip
    made = str(site.call("POST", "/v1/batches", wanted)["id"])
    path = f"/v1/batches/{made}"
    wait_until(lambda: site.call("GET", path)["status"] == "completed", "the batch ends", 120)
    return made


def toast(page: Page) -> Locator:
    return page.locator(".toasts p")


def confirm(page: Page, label: str) -> Locator:
    """The button of the open dialog."""
    return page.locator("dialog[open] footer").get_by_role("button", name=label)


def test_a_group_is_retried_and_discarded_by_the_number_that_was_shown(
    site: Console, chromium: Browser
) -> None:
    fail(site, 3)
    with opened(chromium, site, "/failures") as watched:
        page = watched.page
        row = page.get_by_role("region", name="Causes of failures").locator("tbody tr")
        expect(row).to_contain_text("ValueError")
        expect(row).to_contain_text("shown.py:")
        expect(row.locator("td").first).to_have_text("3")
        expect(page.locator(".chart canvas")).to_be_visible()
        # One more fails between the question and the answer.
        row.get_by_role("button", name="Discard").click()
        expect(page.locator("dialog[open]")).to_contain_text("Discard 3 failed jobs?")
        page.route("**/api/v1/failures?**", lambda route: route.abort())
        fail(site, 1)
        confirm(page, "Discard").click()
        expect(toast(page)).to_contain_text("has 4 failures by now, and not 3")
        page.unroute("**/api/v1/failures?**")
        expect(row.locator("td").first).to_have_text("4")
        row.get_by_role("link", name="ValueError").click()
        expect(page).to_have_url(re.compile(r"#/failures\?group=shown\."))
        panel = page.locator(".panel", has=page.get_by_role("link", name="All its jobs"))
        panel.get_by_role("button", name="Retry").click()
        confirm(page, "Retry").click()
        expect(toast(page)).to_have_text("4 jobs are in their queues again.")
        # They fail again, and come back.
        expect(row.locator("td").first).to_have_text("4")
        row.get_by_role("button", name="Discard").click()
        confirm(page, "Discard").click()
        expect(toast(page)).to_have_text("4 failures are discarded.")
        expect(page.get_by_text("No job has failed in 1 day")).to_be_visible()
        assert [
            one for one in watched.complaints if "ERR_FAILED" not in one and "409" not in one
        ] == []
    assert site.call("GET", "/api/v1/failures")["failures"] == []


def test_a_run_is_cancelled_and_the_failed_rows_of_a_batch_are_shown(
    site: Console, chromium: Browser
) -> None:
    path = "/api/v1/runs/scans"
    site.call("PUT", path, {**RUN, "started_at": time.time() - 60})
    made = batch(site, ["fine", "raise one", f"raise {HOSTILE}"])
    with opened(chromium, site, "/runs") as watched:
        page = watched.page
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        runs = page.get_by_role("region", name="Runs")
        expect(runs).to_contain_text("42 %, 417 of 1,000")
        expect(runs).to_contain_text("<img src=x onerror=alert(1)>")
        site.call("PUT", path, {**RUN, "started_at": time.time() - 60})  # it is alive
        runs.get_by_role("button", name="Cancel").click()
        confirm(page, "Cancel").click()
        expect(toast(page)).to_contain_text("stops with its next report")
        assert site.call("GET", path)["cancel_requested"]
        runs.get_by_role("link").first.click()
        expect(page.get_by_text("headrace runs resume scans --only-failed")).to_be_visible()
        page.get_by_role("region", name="Batches").get_by_role("link", name="2", exact=True).click()
        rows = page.get_by_role("region", name="Failed rows")
        expect(rows.locator("tbody tr")).to_have_count(2)
        expect(rows).to_contain_text("row-1")
        expect(rows).to_contain_text("⟨202E⟩abc")
        assert made in page.url
        assert watched.complaints == []
        assert page.title() == "Runs and batches · Headrace"


def test_a_worker_is_drained_and_goes_on(site: Console, chromium: Browser) -> None:
    with opened(chromium, site, "/workers") as watched:
        page = watched.page
        panel = page.locator(".panel", has_text="cpu0@")
        expect(panel.locator(".state").first).to_have_text("serving")
        expect(panel.get_by_role("region")).to_contain_text("1 of 1")
        expect(panel.get_by_role("img", name=re.compile("memory: .* used"))).to_be_visible()
        panel.get_by_role("button", name="Drain").click()
        confirm(page, "Drain").click()
        expect(toast(page)).to_contain_text("claims nothing more")
        expect(panel.locator(".state").first).to_have_text("drained")
        waiting = site.submit("later on")
        assert site.call("GET", f"/api/v1/jobs/{waiting}")["status"] == "queued"
        panel.get_by_role("button", name="Resume").click()
        expect(panel.locator(".state").first).to_have_text("serving")
        site.ended(waiting)
        assert watched.complaints == []


def test_webhooks_that_fail_come_first_and_are_sent_again(
    site: Console, chromium: Browser, receiver: Receiver
) -> None:
    good = site.submit("fine", webhook=receiver.url("/200"))
    bad = site.submit("fine", webhook=receiver.url("/404"))
    for job_id in (good, bad):
        receiver.wait_for(job_id)
    with opened(chromium, site, "/webhooks") as watched:
        page = watched.page
        deliveries = page.get_by_role("region", name="Deliveries")
        rows = deliveries.locator("tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("404")
        expect(rows.last).to_contain_text("delivered")
        rows.last.get_by_role("button", name="Send again").click()
        confirm(page, "Send again").click()
        expect(toast(page)).to_contain_text("sent again")
        first, second = receiver.wait_for(good, 2)
        assert first.id == second.id
        rows.first.get_by_role("link", name="job.succeeded").click()
        attempts = page.get_by_role("region", name="Attempts")
        expect(attempts).to_contain_text("404")
        page.get_by_role("button", name="delivered", exact=True).click()
        expect(rows).to_have_count(1)
        assert watched.complaints == []


def test_a_key_is_made_shown_once_and_revoked(site: Console, chromium: Browser) -> None:
    with opened(chromium, site, "/keys") as watched:
        page = watched.page
        page.get_by_role("button", name="New key").click()
        dialog = page.locator("dialog[open]")
        dialog.get_by_label("Name").fill("<b>reports</b>")
        dialog.get_by_label("submit", exact=False).uncheck()
        dialog.get_by_label("Jobs in flight").fill("5")
        confirm(page, "New key").click()
        text = page.locator("pre.secret").inner_text()
        site.keys["reports"] = text
        assert site.call("GET", "/api/v1/keys/self", key="reports")["scopes"] == ["read"]
        row = page.locator("tbody tr", has_text="<b>reports</b>")
        expect(row).to_contain_text("of 5")
        page.get_by_role("button", name="I have it").click()
        expect(page.locator("pre.secret")).to_have_count(0)
        page.reload()
        expect(row).to_be_visible()
        assert text.rpartition("_")[2] not in page.content()
        row.get_by_role("button", name="Revoke").click()
        confirm(page, "Revoke").click()
        expect(row).to_have_count(0)
        status, _ = site.up.request(
            "GET", "/api/v1/keys/self", None, Authorization=f"Bearer {text}"
        )
        assert status == 401
        # What the console has done is in the audit log, by the key of its tab.
        page.evaluate("location.hash = '#/audit'")
        first = page.locator("tbody tr").first
        expect(first).to_contain_text("revoked a key")
        expect(first).to_contain_text("all")
        expect(first).to_contain_text("<b>reports</b>")
        first.get_by_role("link", name="all").click()
        expect(page).to_have_url(re.compile("by=[0-9a-f]{12}"))
        expect(page.locator("tbody tr", has_text="made a key")).to_have_count(1)
        assert watched.complaints == []


def test_buttons_and_pages_that_a_key_may_not_use_are_absent(
    site: Console, chromium: Browser
) -> None:
    job_id = site.submit("raise mine")
    site.ended(job_id)
    with opened(chromium, site, "/failures", key="user") as watched:
        menu = watched.page.locator("nav.menu [role=group] a").all_inner_texts()
        names = [text.split("\n")[0] for text in menu]
        assert "Failures" in names
        assert not {"Workers", "Keys", "Audit"} & set(names)
        # The failures are of another key.
        expect(watched.page.get_by_text("No job has failed")).to_be_visible()
        for address in ("/workers", "/keys", "/audit"):
            watched.page.evaluate("address => { location.hash = address }", address)
            expect(watched.page.locator("main")).to_contain_text(
                "needs a key with the scope manage"
            )
    reader = {"model": "shown", "input": {"text": "raise theirs"}}
    own = str(site.call("POST", "/api/v1/jobs", reader, key="user")["id"])
    site.ended(own)
    with opened(chromium, site, "/failures", key="user") as watched:
        causes = watched.page.get_by_role("region", name="Causes of failures")
        expect(causes.locator("tbody tr")).to_have_count(1)
        assert watched.page.get_by_role("button", name=re.compile("Retry|Discard")).count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_for_people_and_fits_its_screen(
    site: Console, chromium: Browser, scheme: Any
) -> None:
    fail(site, 1, f"raise {HOSTILE}")
    (group, *_) = site.call("GET", "/api/v1/failures")["failures"]
    addresses = ["/failures", f"/failures?group={group['group']}", "/failures?error=nothing"]
    addresses += ["/runs", "/workers", "/webhooks", "/webhooks?state=failed", "/keys", "/audit"]
    with opened(chromium, site) as watched:
        page = watched.page
        page.emulate_media(color_scheme=scheme)
        fits_and_is_for_people(page, addresses)
        page.keyboard.press("g")
        page.keyboard.press("w")
        expect(page.get_by_role("heading", name="Workers and devices")).to_be_visible()
        page.keyboard.press("g")
        page.keyboard.press("f")
        field = page.get_by_label("Search failures")
        expect(field).to_be_visible()
        page.keyboard.press("/")
        expect(field).to_be_focused()
        assert watched.complaints == []
        own = (site.url, "data:", "blob:")
        assert [url for url in watched.requests if not url.startswith(own)] == []
