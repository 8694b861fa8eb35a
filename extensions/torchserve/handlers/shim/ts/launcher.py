"""Starts and stops a server from a script, and registers models: for tests and tools."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from queue import Empty, Full, Queue
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import requests

STARTED: Final = "Model server started"
_URL: Final = "http://localhost:8081/models"
#: How many lines are kept; the caller may never read them.
_KEPT: Final = 1000


def start(
    model_store: str | None = None,
    snapshot_file: str | None = None,
    no_config_snapshots: bool = False,
    plugin_folder: str | None = None,
    disable_token: bool = False,
    models: str | None = None,
    enable_model_api: bool = False,
) -> Queue[str | None]:
    """Stop a server that runs, and start one; return when it has started, or has ended.

    Returns:
        The lines that the server writes from now on, and None at its end. The
        newest 1,000 are kept until they are taken. If the server has not started, its lines were
        printed, and the queue has None alone.
    """
    stop()
    words = ["--start", "--model-store", str(model_store or "")]
    for flag, value in (
        ("--plugins-path", plugin_folder),
        ("--ts-config", snapshot_file),
        ("--models", models),
    ):
        words += [flag, str(value)] if value else []
    for flag, given in (
        ("--no-config-snapshots", no_config_snapshots),
        ("--disable-token-auth", disable_token),
        ("--enable-model-api", enable_model_api),
    ):
        words += [flag] if given else []
    # The server continues in the background, and has this output too.
    process = subprocess.Popen(
        [*_command(), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = _printed(process.stdout)
    any(STARTED in line for line in lines)  # read until then
    kept: Queue[str | None] = Queue(_KEPT)
    threading.Thread(target=_keep, args=(lines, kept), daemon=True).start()
    return kept


def stop(wait: bool = True) -> None:
    """Stop the server; return when it has ended, also without `wait`."""
    subprocess.run([*_command(), "--stop"], check=False)


def register_model(model_name: str, url: str) -> requests.Response:
    """Register a model with one worker, and wait until it is loaded."""
    return register_model_with_params(
        {"model_name": model_name, "url": url, "initial_workers": "1", "synchronous": "true"}
    )


def register_model_with_params(params: Any) -> requests.Response:
    """Register a model with these parameters; return the answer of the management API."""
    import requests

    # A registration waits for the load of the model, however long that takes. No proxy of the
    # environment reaches this machine.
    return requests.post(_URL, params=params, timeout=None, proxies={"http": ""})  # noqa: S113


def _command() -> list[str]:
    """Return the command: `torchserve` if it is installed, else Headrace's own."""
    found = shutil.which("torchserve")
    return [found] if found else [sys.executable, "-m", "headrace", "torchserve"]


def _printed(stream: IO[str] | None) -> Iterator[str]:
    for line in stream or ():
        sys.stdout.write(line)
        yield line


def _keep(lines: Iterator[str], kept: Queue[str | None]) -> None:
    for line in chain(lines, [None]):
        while True:
            try:
                kept.put_nowait(line)
                break
            except Full:
                with suppress(Empty):
                    kept.get_nowait()
