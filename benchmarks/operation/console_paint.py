"""How fast the console paints: `python -m benchmarks.operation.console_paint [--rounds N]`.

A browser opens the overview on loopback, each time with an empty cache and once more with a full
one. Printed are medians: the first paint, and when the table of models is there.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, BrowserContext

from tests.extensions.console.harness.deployment import Console, console
from tests.harness.http.browser import browser

PAINT: Final = """() => [
    performance.getEntriesByName('first-contentful-paint')[0].startTime, performance.now()]"""


def visit(context: BrowserContext, site: Console) -> tuple[float, float]:
    """Return the milliseconds to the first paint, and to the table."""
    page = context.new_page()
    page.add_init_script(f"sessionStorage.setItem('headrace.key', {site.keys['all']!r})")
    page.goto(f"{site.url}/console", wait_until="commit")
    page.locator("main table").first.wait_for()
    first, table = page.evaluate(PAINT)
    page.close()
    return first, table


def measure(chromium: Browser, site: Console, rounds: int) -> None:
    """Print a line for each kind of visit."""
    cold, warm = [], []
    for _ in range(rounds):
        context = chromium.new_context()
        cold.append(visit(context, site))
        warm.append(visit(context, site))
        context.close()
    for name, visits in (("empty cache", cold), ("full cache", warm)):
        first, table = (statistics.median(times) for times in zip(*visits, strict=True))
        print(f"{name:12} first paint {first:5.0f} ms, table {table:5.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    with (
        tempfile.TemporaryDirectory() as folder,
        browser() as chromium,
        console(Path(folder)) as it,
    ):
        measure(chromium, it, rounds)


if __name__ == "__main__":
    main()
