"""A whole deployment with keys of each scope, and the console of it in a browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from playwright.sync_api import Browser

from tests.harness.http.browser import Watched, browser_page
from tests.harness.servers.up import RunningUp, headrace, running_up, write_models
from tests.harness.wait import wait_until

HANDLER = Path(__file__).with_name("shown.py")
#: The keys by name, with their scopes; a manager of the console has all three.
KEYS = {
    "all": ("submit", "read", "manage"),
    "user": ("submit", "read"),
    "reader": ("read",),
    "submitter": ("submit",),
}


@dataclass
class Console:
    """A running deployment.

    Attributes:
        keys: by the names in KEYS.
    """

    up: RunningUp
    folder: Path
    keys: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.up.port}"

    def call(self, method: str, path: str, document: Any = None, key: str = "all") -> Any:
        """The JSON of an answer of the API that is no refusal."""
        headers = {"Authorization": f"Bearer {self.keys[key]}", "Content-Type": "application/json"}
        body = None if document is None else json.dumps(document).encode()
        status, answer = self.up.request(method, path, body, **headers)
        assert status < 400, answer
        return answer

    def submit(self, text: str, model: str = "shown", **options: Any) -> str:
        """Submit a text, and return the id of its job."""
        job = {"model": model, "input": {"text": text}, "options": options}
        return str(self.call("POST", "/api/v1/jobs", job)["id"])

    def ended(self, job_id: str) -> dict[str, Any]:
        """Wait until a job has ended, and return it."""

        def read() -> Any:
            job = self.call("GET", f"/api/v1/jobs/{job_id}")
            return job if job["finished_at"] else None

        job = wait_until(read, f"job {job_id} ends", 60)
        assert isinstance(job, dict)
        return job

    def open_gate(self) -> None:
        """Let the slow inputs go on."""
        (self.folder / "gate").touch()


@contextmanager
def console(
    folder: Path,
    models: dict[str, dict[str, Any]] | None = None,
    pipelines: dict[str, dict[str, Any]] | None = None,
    *,
    wait_for: tuple[str, ...] = ("all",),
    **variables: str,
) -> Iterator[Console]:
    """A deployment with the model `shown` and those given, all loaded, that requires keys.

    It has pipelines of these models too.
    """
    handler = shutil.copy(HANDLER, folder)  # tracebacks name a short path
    shown = {
        "handler": handler, "max_batch_size": 4, "options": {"gate": str(folder / "gate")},
        "inputs": {"fields": {"text": "string"}, "example": {"text": "good morning"}},
    }  # fmt: skip
    chosen = {"shown": shown, **(models or {})}
    flags: dict[str, Any] = {"HEADRACE_AUTH": "on", **variables, "background": True}
    path = write_models(folder, chosen)
    if pipelines:
        path.write_text(path.read_text() + yaml.safe_dump({"pipelines": pipelines}))
    with running_up(folder, models=path, **flags) as up:
        keys = {name: _key(up, name, scopes) for name, scopes in KEYS.items()}
        site = Console(up, folder, keys)
        wait_until(lambda: _loaded(site, wait_for), "the models are loaded", 120)
        yield site


def _loaded(site: Console, names: tuple[str, ...]) -> bool:
    """Whether these models, or "all", have a ready replica or are loaded on demand."""
    states = {one["name"]: one["state"] for one in site.call("GET", "/api/v1/models")["models"]}
    wanted = states if names == ("all",) else names
    return all(states.get(name) in ("ready", "unloaded") for name in wanted)


def _key(up: RunningUp, name: str, scopes: tuple[str, ...]) -> str:
    flags = [part for scope in scopes for part in ("--scope", scope)]
    made = headrace(
        "keys", "create", name, *flags, "--json", "--state-dir", str(up.state_dir), cwd=up.folder
    )
    assert made.returncode == 0, made.stderr
    return str(json.loads(made.stdout)["key"])


@contextmanager
def opened(
    chromium: Browser, of: Console, address: str = "", key: str = "all", width: int = 1280
) -> Iterator[Watched]:
    """A page of the console, such as `/jobs?status=failed`, with a key; "" for none."""
    with browser_page(chromium) as watched:
        watched.page.set_viewport_size({"width": width, "height": 900})
        if key:
            watched.page.add_init_script(
                f"sessionStorage.setItem('headrace.key', {of.keys[key]!r})"
            )
        watched.page.goto(f"{of.url}/console#{address or '/'}")
        watched.page.locator("main h1, main h2").first.wait_for()
        yield watched
