"""A real browser that sees what a page does: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

_ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
    "--disable-background-networking",
]  # fmt: skip
#: Of a machine that has much else to do.
LIMIT_MS = 90_000
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def require_browser() -> str:
    """The browser's program. A missing one skips on a laptop and fails in CI."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        message = "no Chromium on the PATH (Debian: apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found


@dataclass
class Watched:
    """A page, and what it did.

    Attributes:
        requests: every address that it asked for, whether that was answered or not.
        complaints: its errors, and what its console says, such as of a broken policy.
    """

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@contextmanager
def browser() -> Iterator[Browser]:
    """A running browser. It takes seconds to start: one serves all tests of a module."""
    program = require_browser()
    expect.set_options(timeout=LIMIT_MS)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=program, args=_ARGUMENTS, timeout=LIMIT_MS
        )
        try:
            yield running
        finally:
            running.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser for each module of pages; a conftest.py of their folder imports it."""
    with browser() as running:
        yield running


@contextmanager
def browser_page(running: Browser, *, scripts: bool = True) -> Iterator[Watched]:
    """An empty page that shares nothing with other pages of the browser, such as its cache."""
    page = running.new_page(viewport={"width": 1280, "height": 1600}, java_script_enabled=scripts)
    try:
        page.set_default_timeout(LIMIT_MS)
        watched = Watched(page)
        page.on("request", lambda request: watched.requests.append(request.url))
        page.on("console", lambda message: watched.complaints.append(message.text))
        page.on("pageerror", lambda error: watched.complaints.append(str(error)))
        yield watched
    finally:
        page.close()
