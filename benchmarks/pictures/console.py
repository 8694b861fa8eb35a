"""Draws the console for the documentation: `python -m benchmarks.pictures.console [--into FOLDER]`.

A deployment serves three models for some minutes, with two things that are wrong: no worker may run
one of them, and jobs of another fail.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Route, expect

from headrace import Client
from tests.extensions.console.harness.deployment import Console, console, opened
from tests.harness.http.browser import browser
from tests.harness.servers.up import ROOT

IMAGES: Final = ROOT / "docs" / "images"
WIDTH: Final = 1180
#: The series have a value for each minute.
LOAD_S: Final = 310
#: What is wrong with the machine itself, such as a full disk, is not shown.
FINDINGS: Final = {"model-unserved", "failures-rise"}
DIGITS: Final = sorted((ROOT / "examples" / "digits").glob("*.png"))
TEXTS: Final = ["good morning", "the queue is short", "thank you"] * 2 + ["raise: no such word"]


def load(site: Console, stop: threading.Event) -> None:
    """Send digits and texts at a varying rate; a text in seven fails."""
    draw = random.Random(7)
    with Client(site.url, api_key=site.keys["all"]) as client:
        while not stop.is_set():
            client.submit("digits", draw.choice(DIGITS))
            client.submit("shown", {"text": draw.choice(TEXTS)}, metadata={"customer": "42"})
            stop.wait(draw.expovariate(6))


def without_the_machine(route: Route) -> None:
    """Answer with the overview, with the findings of this deployment alone."""
    answer = route.fetch()
    document = answer.json()
    document["findings"] = [one for one in document["findings"] if one["code"] in FINDINGS]
    route.fulfill(response=answer, json=document)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=IMAGES)
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    arguments = parser.parse_args()
    into, theme = arguments.into, arguments.theme
    models: dict[str, dict[str, Any]] = {
        "digits": {"handler": "digits"},
        "archive": {"handler": "echo", "labels": ["gpu=large"]},
    }
    # No worker has the label of `archive`, so not all models are waited for.
    with (
        tempfile.TemporaryDirectory() as folder,
        browser() as chromium,
        console(Path(folder), models, wait_for=("digits", "shown")) as site,
    ):
        stop = threading.Event()
        thread = threading.Thread(target=load, args=(site, stop))
        thread.start()
        stop.wait(LOAD_S)
        failed = site.submit("raise: no such word", metadata={"customer": "42", "source": "web"})
        site.ended(failed)
        for name, address, height in (("overview", "/", 640), ("job", f"/jobs/{failed}", 840)):
            with opened(chromium, site, width=WIDTH) as watched:
                page = watched.page
                page.emulate_media(color_scheme=theme)
                page.route("**/api/v1/overview", without_the_machine)
                page.set_viewport_size({"width": WIDTH, "height": height})
                expect(page.locator(".findings li")).to_have_count(len(FINDINGS))
                page.evaluate("address => { location.hash = address }", address)
                page.locator(".panel").last.wait_for()
                page.wait_for_load_state("networkidle")
                path = into / f"console-{name}.png"
                page.screenshot(path=path)
                with Image.open(path) as picture:
                    picture.convert("RGB").save(path, optimize=True)
        stop.set()
        thread.join()


if __name__ == "__main__":
    main()
