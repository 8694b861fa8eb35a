"""The examples with a language model: the chat page in a browser, and prompts as a batch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.harness.http.browser import browser_page
from tests.harness.http.page_server import page_server
from tests.harness.servers.up import ROOT, RunningUp, running_up, write_models
from tests.harness.wait import wait_until

EXAMPLES = ROOT / "examples"
MODELS = {"python_docs": {"handler": "language_model", "max_batch_size": 8}}


@pytest.fixture(scope="module")
def page_url() -> Iterator[str]:
    with page_server(EXAMPLES) as url:
        yield url


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, page_url: str) -> Iterator[RunningUp]:
    folder = tmp_path_factory.mktemp("up")
    with running_up(
        folder, models=write_models(folder, MODELS), runner=True, OMP_NUM_THREADS="1",
        HEADRACE_CORS_ORIGINS=page_url,
    ) as running:  # fmt: skip
        wait_until(lambda: running.request("GET", "/ready?models=all")[0] == 200, "loaded", 90)
        yield running


@pytest.mark.parametrize("width", [1280, 390])
def test_the_chat_page_answers(chromium: Browser, up: RunningUp, page_url: str, width: int) -> None:
    with browser_page(chromium) as watched:
        page = watched.page
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(f"{page_url}/chat.html?api=http://127.0.0.1:{up.port}")
        page.get_by_label("Message").fill("What is random.choice?")
        page.keyboard.press("Enter")
        expect(page.locator(".assistant")).to_have_text(
            "Choose a random element from a non-empty sequence."
        )
        page.get_by_label("Message").fill("What is zip?")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".assistant")).to_have_count(2)
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        assert not watched.complaints
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_chat_page_shows_errors(chromium: Browser, up: RunningUp, page_url: str) -> None:
    with browser_page(chromium) as watched:
        page = watched.page
        page.goto(f"{page_url}/chat.html?api=http://127.0.0.1:{up.port}&model=nothing")
        page.get_by_label("Message").fill("hello")
        page.keyboard.press("Enter")
        expect(page.locator(".error")).to_contain_text("no model 'nothing' is registered")
        expect(page.locator(".assistant")).to_have_count(0)


def test_prompts_are_answered_as_a_batch(up: RunningUp, tmp_path: Path) -> None:
    names = ["zip", "json.loads", "random.choice"]
    prompts, answers = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    prompts.write_text("".join(f"What is {name}?\n" for name in names * 10) + "x " * 2000)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "prompts_overnight.py"), str(prompts), str(answers)],
        capture_output=True, text=True, check=False, timeout=120,
        env={"HEADRACE_URL": f"http://127.0.0.1:{up.port}", "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "completed: 30 of 31, 1 failed" in done.stdout
    *found, failed = map(json.loads, answers.read_text().splitlines())
    assert [one["prompt"] for one in found] == [f"What is {name}?" for name in names * 10]
    assert found[2]["answer"] == "Choose a random element from a non-empty sequence."
    assert "context length is 1,024" in failed["error"]
