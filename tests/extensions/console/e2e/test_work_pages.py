"""The overview, models, jobs and the page to try them, in a browser on a whole deployment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.extensions.console.harness.deployment import HANDLER, Console, console, opened
from tests.extensions.console.harness.page_checks import HOSTILE, fits_and_is_for_people
from tests.harness.wait import wait_until

MODELS: dict[str, dict[str, Any]] = {
    "echo": {"handler": "echo"},
    "python_docs": {"handler": "language_model", "load": "on_demand", "max_batch_size": 8},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    folder = tmp_path_factory.mktemp("console")
    with console(
        folder, MODELS, HEADRACE_MODEL_API="true", HEADRACE_MODEL_STORE=str(HANDLER.parent)
    ) as running:
        yield running


@pytest.fixture(scope="module")
def failed(site: Console) -> str:
    """A job that has failed, with hostile metadata and a hostile error."""
    job_id = site.submit(f"raise {HOSTILE}", metadata={"customer": HOSTILE, "long": "x" * 3000})
    assert site.ended(job_id)["status"] == "failed"
    return job_id


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_for_people_and_asks_for_nothing_elsewhere(
    site: Console, chromium: Browser, failed: str, scheme: Any
) -> None:
    done = site.submit("good picture")
    assert site.ended(done)["status"] == "succeeded"
    addresses = ["/", "/models", "/models/shown", "/jobs", f"/jobs/{failed}", f"/jobs/{done}"]
    addresses += ["/try?model=shown", "/try?model=python_docs"]
    with opened(chromium, site) as watched:
        page = watched.page
        page.emulate_media(color_scheme=scheme)
        fits_and_is_for_people(page, addresses)
        assert watched.complaints == []
        own = (site.url, "data:", "blob:")
        assert [url for url in watched.requests if not url.startswith(own)] == []


def test_without_a_key_it_asks_for_one_and_keeps_it_in_the_tab(
    site: Console, chromium: Browser
) -> None:
    assert f"console {site.url}/console" in site.up.text(), "it prints the address"
    with opened(chromium, site, key="") as watched:
        page = watched.page
        field = page.get_by_label("API key")
        field.fill(f"{site.keys['all'][:-1]}{'a' if site.keys['all'][-1] != 'a' else 'b'}")
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_role("alert")).to_contain_text("unknown")
        field.fill(site.keys["all"])
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        stored = page.evaluate("[JSON.stringify(localStorage), document.cookie]")
        assert not any("hr_" in text for text in stored)
        page.get_by_role("button", name="Forget key").click()
        expect(field).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0


def test_buttons_that_a_key_may_not_use_are_absent(
    site: Console, chromium: Browser, failed: str
) -> None:
    with opened(chromium, site, f"/jobs/{failed}", key="user") as watched:
        # The failed job is of another key.
        expect(watched.page.get_by_role("alert")).to_contain_text("there is no job")
    for key, names in (("all", ["Pause", "Reload", "Scale"]), ("reader", [])):
        with opened(chromium, site, "/models/shown", key=key) as watched:
            expect(watched.page.get_by_text("Replicas", exact=True)).to_be_visible()
            buttons = watched.page.locator(".actions > button").all_inner_texts()
            assert [name for name in buttons if name in ("Pause", "Reload", "Scale")] == names
    with opened(chromium, site, "/try?model=shown", key="submitter") as watched:
        menu = watched.page.locator("nav.menu [role=group] a")
        assert [text.split("\n")[0] for text in menu.all_inner_texts()] == ["Try it"]
        watched.page.get_by_label("JSON").fill('{"text": "good"}')
        watched.page.get_by_role("button", name="Send").click()
        expect(watched.page.get_by_text("This key may not read results.")).to_be_visible()


def test_a_failed_job_shows_the_handlers_lines_and_hostile_text_changes_nothing(
    site: Console, chromium: Browser, failed: str
) -> None:
    with opened(chromium, site, f"/jobs/{failed}") as watched:
        page = watched.page
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        expect(page.locator(".frames li").first).to_contain_text("raise ValueError(text)")
        expect(page.locator(".frames li").first).to_contain_text("shown.py")
        expect(page.locator(".failure pre").first).to_contain_text("<img src=x onerror=alert(1)>")
        expect(page.locator(".failure pre").first).to_contain_text("⟨202E⟩abc")
        expect(page.get_by_text("raise <img").first).to_be_visible()
        page.evaluate("location.hash = '#/jobs?error=onerror'")
        expect(page.get_by_role("link", name=re.compile(failed[-12:]))).to_be_visible()
        assert page.locator("img").count() == 0
        assert "ran" not in page.title()
        assert watched.complaints == []


def test_a_large_result_and_a_hostile_file_name_are_shown_as_text(
    site: Console, chromium: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "<b onclick=alert(1)>\u202egnp.json"
    file.write_text(json.dumps({"text": f"{HOSTILE} {'y' * 1_000_000}"}))
    with opened(chromium, site, "/try?model=shown") as watched:
        page = watched.page
        page.locator("input[type=file]").set_input_files(file)
        expect(page.locator(".drop")).to_contain_text("<b onclick=alert(1)>⟨202E⟩gnp.json")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_text('"label":')).to_be_visible()
        assert page.locator("main b[onclick], main script").count() == 0
        assert watched.complaints == []


def test_no_result_or_address_hangs_or_ends_the_page(site: Console, chromium: Browser) -> None:
    nested: Any = 1
    for _ in range(60):
        nested = [nested]
    job_id = site.call("POST", "/api/v1/jobs", {"model": "echo", "input": nested})["id"]
    assert site.ended(job_id)["status"] == "succeeded"
    with opened(chromium, site, f"/jobs/{job_id}") as watched:
        page = watched.page
        expect(page.locator(".chip")).to_contain_text("array")
        save = page.get_by_role("link", name="Save")
        save.evaluate("link => link.removeAttribute('download')")
        # A result that the browser shows, such as a page, would have the console's origin.
        with page.expect_download():
            save.click()
        page.evaluate("location.hash = '#/models/100%'")
        expect(page.get_by_role("alert")).to_contain_text("100%")


def test_a_job_is_watched_cancelled_and_retried(site: Console, chromium: Browser) -> None:
    slow = site.submit("slow")
    with opened(chromium, site, f"/jobs/{slow}") as watched:
        page = watched.page
        expect(page.get_by_text("waiting at the gate")).to_be_visible()
        page.get_by_role("button", name="Cancel").first.click()
        with page.expect_request(lambda request: request.method == "DELETE") as sent:
            page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        assert sent.value.headers["headrace-client"] == "console", (
            "noted where no keys are required"
        )
        expect(page.get_by_role("status").filter(has_text="discarded")).to_be_visible()
        site.open_gate()
        expect(page.locator(".head .state")).to_have_text("cancelled")
        again = site.submit("raise once")
        site.ended(again)
        page.evaluate("id => { location.hash = `#/jobs/${id}` }", again)
        page.get_by_role("button", name="Retry").click()
        expect(page.get_by_text("The job is in its queue again.")).to_be_visible()
        wait_until(lambda: site.ended(again)["attempts"] == 1, "it has run again")
        for job_id, action in ((slow, "cancel_job"), (again, "retry_job")):
            (entry,) = site.call("GET", f"/api/v1/audit?target={job_id}")["entries"]
            assert entry["action"] == action
        page.emulate_media(media="print")
        expect(page.get_by_role("button", name="Print")).to_be_hidden()
        expect(page.locator(".failure")).to_be_visible()


def test_jobs_are_found_and_the_address_keeps_the_filters(site: Console, chromium: Browser) -> None:
    wanted = site.submit("good morning", metadata={"customer": "7"})
    site.ended(wanted)
    with opened(chromium, site, "/jobs") as watched:
        page = watched.page
        page.keyboard.press("/")
        search = page.get_by_label("Search jobs")
        expect(search).to_be_focused()
        search.fill("customer=7")
        search.press("Enter")
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(1)
        page.get_by_label("State").select_option("failed")
        expect(page.get_by_text("No job fits these filters")).to_be_visible()
        assert re.search(r"#/jobs\?.*metadata=customer%3D7.*status=failed", page.url)
        page.reload()
        expect(page.get_by_text("No job fits these filters")).to_be_visible()
        page.get_by_label("State").select_option("")
        expect(rows).to_have_count(1)
        search.fill(wanted)
        search.press("Enter")
        expect(page.locator(".chip").filter(has_text="id")).to_be_visible()
        rows.get_by_role("link", name=re.compile(wanted[-12:])).click()
        expect(page.locator("h1")).to_have_text(wanted)


def test_a_model_is_paused_scaled_reloaded_and_its_traffic_moves(
    site: Console, chromium: Browser
) -> None:
    def model() -> dict[str, Any]:
        found: dict[str, Any] = site.call("GET", "/api/v1/models/shown")
        return found

    def served() -> set[int]:
        """The processes of the default version."""
        workers = [one for one in model()["workers"] if one["version"] == "1.0"]
        return {pid for one in workers for pid in one["model_pids"]}

    def confirmed(page: Page, name: str) -> None:
        page.get_by_role("button", name=name, exact=True).first.click()
        page.get_by_role("dialog").get_by_role("button", name=name, exact=True).click()

    site.call("PUT", "/api/v1/models/shown/versions/2.0", {"options": {"handler": str(HANDLER)}})
    with opened(chromium, site, "/models/shown") as watched:
        page = watched.page
        confirmed(page, "Pause")
        expect(page.locator(".head .state")).to_have_text("paused")
        site.submit("waits in the queue")
        page.evaluate("location.hash = '#/'")
        found = page.get_by_label("What is wrong").get_by_role("listitem")
        found.filter(has_text="shown is paused").get_by_role("button", name="Resume").click()
        expect(page.locator(".toasts")).to_contain_text("The queue goes on.")
        page.evaluate("location.hash = '#/models/shown'")
        expect(page.locator(".head .state")).to_have_text("ready")
        pids = served()
        confirmed(page, "Reload")
        wait_until(lambda: served() and not pids & served(), "other processes serve it", 90)
        page.get_by_role("button", name="Scale", exact=True).click()
        page.get_by_label("in each worker").fill("2")
        page.get_by_role("dialog").get_by_role("button", name="Scale").click()
        wait_until(lambda: model()["ready_replicas"] >= 2, "there are two replicas", 90)
        page.get_by_label("Share of 2.0").fill("25")
        confirmed(page, "Apply")
        expect(page.locator(".toasts")).to_contain_text("25 % to 2.0")
        assert site.call("GET", "/api/v1/models/shown/traffic")["weights"]["2.0"] == 25
        assert watched.complaints == []
    site.call("PUT", "/api/v1/models/shown/traffic", {})


def test_a_lost_connection_is_told_and_comes_back(site: Console, chromium: Browser) -> None:
    with opened(chromium, site) as watched:
        page = watched.page
        expect(page.get_by_role("link", name="shown", exact=True)).to_be_visible()
        page.context.set_offline(True)
        expect(page.get_by_text("The connection to the API is lost")).to_be_visible()
        expect(page.locator("main.stale")).to_be_visible()
        expect(page.get_by_role("link", name="shown", exact=True)).to_be_visible()
        page.context.set_offline(False)
        expect(page.get_by_text("The connection to the API is lost")).to_have_count(0)
        expect(page.locator("main.stale")).to_have_count(0)


def test_a_tab_in_the_background_asks_for_nothing(site: Console, chromium: Browser) -> None:
    with opened(chromium, site) as watched:
        page = watched.page
        expect(page.get_by_role("link", name="shown", exact=True)).to_be_visible()
        page.clock.install()
        page.reload()
        expect(page.get_by_role("link", name="shown", exact=True)).to_be_visible()

        def show(hidden: bool) -> None:
            page.evaluate(
                "value => { Object.defineProperty(document, 'hidden', {value, configurable: true});"
                " document.dispatchEvent(new Event('visibilitychange')) }",
                hidden,
            )

        show(hidden=True)
        # Polls that are under way end; none begins after them.
        page.wait_for_load_state("networkidle")
        page.clock.run_for(5_000)
        page.wait_for_load_state("networkidle")
        before = len(watched.requests)
        page.clock.run_for(120_000)
        assert len(watched.requests) == before
        with page.expect_request("**/api/v1/overview"):
            show(hidden=False)


def test_a_duration_has_no_sixty_seconds(site: Console, chromium: Browser) -> None:
    with opened(chromium, site) as watched:
        seconds = [59.4, 59.7, 119.7, 599.7, 3599.7, 7199.7, 86_399]
        script = """all => import(document.querySelector('link[href$="/parts.js"]').href)
            .then(parts => all.map(s => parts.duration(s)))"""
        shown = watched.page.evaluate(script, seconds)
        assert shown == [
            "59 s",
            "1 min 0 s",
            "2 min 0 s",
            "10 min",
            "1 h 0 min",
            "2 h 0 min",
            "1 d",
        ]


def test_the_keyboard_opens_pages_and_help(site: Console, chromium: Browser) -> None:
    with opened(chromium, site) as watched:
        page = watched.page
        page.keyboard.type("gj")
        expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
        page.keyboard.type("gm")
        expect(page.get_by_role("heading", name="Models")).to_be_visible()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        page.keyboard.type("gj")
        expect(page.get_by_label("Filter models")).to_have_value("gj")
        expect(page.get_by_text("No model has this name")).to_be_visible()


def test_a_language_model_answers_word_by_word(site: Console, chromium: Browser) -> None:
    with opened(chromium, site, "/try?model=python_docs") as watched:
        page = watched.page
        expect(page.get_by_label("Model", exact=True)).to_have_value("python_docs")
        page.get_by_label("Message").fill("What does zip do?")
        page.get_by_label("Message").press("Enter")
        expect(page.locator(".chat .reply p.user")).not_to_be_empty()
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
        page.get_by_label("Message").fill("And with strict?")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".chat li")).to_have_count(4)
        job_id = page.locator(".chat .reply a").first.get_attribute("href")
        assert job_id
        answer = site.ended(job_id.rpartition("/")[2])["result"]["text"]
        expect(page.locator(".chat .reply p.user").first).to_have_text(answer.strip())
