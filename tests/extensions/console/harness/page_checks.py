"""What every page of the console is checked for."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.harness.servers.up import ROOT

AXE = ROOT / ".venv-console" / "node_modules" / "axe-core" / "axe.min.js"
#: What must change nothing: markup, an address that runs, text that turns the line around.
HOSTILE = (
    "<img src=x onerror=alert(1)><script>document.title='ran'</script>"
    "\u202eabc\u2066 javascript:alert(1)"
)


def serious(page: Page) -> list[str]:
    """What axe finds that hinders people seriously."""
    if not AXE.exists():
        pytest.skip("npm has installed no axe: make lint")
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


def fits_and_is_for_people(page: Page, addresses: list[str]) -> None:
    """Check each page with axe, and that it is no wider than screens of 320 and 2,560 pixels."""
    for address in addresses:
        page.evaluate("address => { location.hash = address }", address)
        expect(page.locator("main h1")).to_be_visible()
        expect(page.locator("main .loading")).to_have_count(0)
        assert serious(page) == [], address
        for width in (320, 2560):
            page.set_viewport_size({"width": width, "height": 900})
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{address} is {wide} wide at {width}"
        page.set_viewport_size({"width": 1280, "height": 900})
