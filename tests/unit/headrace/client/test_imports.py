"""What `import headrace` costs: the clients come when they are asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headrace
from tests.harness.servers.up import ROOT, clean_environment


def imported(code: str) -> set[str]:
    """The top-level modules that a fresh process has after this."""
    code += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return set(done.stdout.split())


def test_servers_do_not_pay_for_the_client() -> None:
    assert "httpx2" not in imported("import headrace")
    assert "httpx2" in imported("from headrace import Client")


def test_the_client_brings_no_server_and_no_queue() -> None:
    heavy = {"torch", "celery", "kombu", "fastapi", "redis", "numpy", "PIL", "api", "workers"}
    assert not imported("from headrace import AsyncClient, Client") & heavy


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="Cleint"):
        _ = headrace.Cleint  # type: ignore[attr-defined]
