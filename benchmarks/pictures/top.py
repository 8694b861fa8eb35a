"""Draws `headrace top` for the documentation: `python -m benchmarks.pictures.top [--into FILE]`.

A deployment serves three models under load. tmux has the terminal, and Chromium draws its screen.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from io import StringIO
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from headrace import Client
from tests.harness.clients.terminal import terminal
from tests.harness.http.browser import browser, browser_page
from tests.harness.servers.up import ROOT, clean_environment, running_up, write_models
from tests.harness.wait import wait_until

PICTURE: Final = ROOT / "docs" / "images" / "top.png"
WIDTH: Final = 120
HEIGHT: Final = 15
#: `headrace top` measures rates over five seconds.
LOAD_S: Final = 12
DIGITS: Final = sorted((ROOT / "examples" / "digits").glob("*.png"))
MODELS: Final[dict[str, dict[str, Any]]] = {
    "digits": {"handler": "digits"},
    "resnet": {
        "handler": "image_classifier", "max_batch_size": 8,
        "options": {"model": "handlers.resnet:resnet18"},
    },
    "echo": {"handler": "echo"},
}  # fmt: skip


def load(url: str, model: str, in_flight: int, stop: threading.Event) -> None:
    """Keep jobs of a model in flight until `stop` is set; one in a hundred fails."""

    def inputs() -> Any:
        while not stop.is_set():
            yield from (DIGITS * 9)[:99]
            yield {"no": "image"}

    with Client(url) as client:
        for _ in client.map(model, inputs(), in_flight=in_flight, return_errors=True):
            pass


def screen(url: str, folder: Path) -> str:
    """Return what `headrace top` shows under load, with ANSI colours."""
    stop = threading.Event()
    loads = [("digits", 900), ("resnet", 120), ("echo", 20)]
    threads = [threading.Thread(target=load, args=(url, *one, stop)) for one in loads]
    for thread in threads:
        thread.start()
    try:
        with terminal(folder, WIDTH, HEIGHT, clean_environment()) as shell:
            shell.enter(f"{sys.executable} -m headrace top --url {url}")
            wait_until(lambda: "OUT/S" in shell.text(), "it shows the models")
            stop.wait(LOAD_S)
            return shell.coloured()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def draw(ansi: str, into: Path) -> None:
    """Draw a terminal's screen."""
    console = Console(record=True, width=WIDTH, file=StringIO(), color_system="truecolor")
    console.print(Text.from_ansi(ansi.rstrip()))
    with browser() as running, browser_page(running) as watched:
        watched.page.set_content(console.export_svg(title="headrace top"))
        watched.page.locator("svg").screenshot(path=into)


def main() -> None:
    """Run the load, and draw the screen."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_up(folder, models=write_models(folder, MODELS)) as up:
            wait_until(lambda: up.request("GET", "/ready?models=all")[0] == 200, "loaded", 120)
            draw(screen(f"http://127.0.0.1:{up.port}", folder), arguments.into)
    print(arguments.into)


if __name__ == "__main__":
    main()
