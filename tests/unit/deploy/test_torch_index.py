"""Where `make setup` finds PyTorch, with a stand-in for its index."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "deploy/torch_index.py"


def options(url: str, **environ: str) -> tuple[str, str]:
    """What the script prints for pip, and for the user."""
    # An empty folder for programs: no nvidia-smi. No file or variable configures pip.
    given = {"PATH": "", "PIP_CONFIG_FILE": "/dev/null", "no_proxy": "*", **environ}
    ended = subprocess.run(
        [sys.executable, SCRIPT, url], env=given, capture_output=True, text=True, check=True
    )
    return ended.stdout.strip(), ended.stderr


@contextmanager
def index(status: int) -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/whl/cpu"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [200, 403])
def test_an_index_that_answers_is_used(status: int) -> None:
    with index(status) as url:
        assert options(url) == (f"--extra-index-url {url}", "")


def test_an_index_that_fails_is_left_out_with_a_warning() -> None:
    with index(502) as url:
        found, warning = options(url)
    assert found == ""
    assert f"{url} cannot be reached (status 502)" in warning


def test_an_index_that_refuses_or_never_answers_is_left_out_with_a_warning() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/whl/cpu"
        assert "timed out" in options(url)[1]
    found, warning = options(url)
    assert found == ""
    assert "Connection refused" in warning


def test_an_index_of_the_user_decides() -> None:
    with index(200) as url:
        assert options(url, PIP_INDEX_URL="http://127.0.0.1:1/simple") == ("", "")
        assert options("") == ("", "")
