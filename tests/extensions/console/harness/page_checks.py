"""What every page of the console is checked for."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

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
