"""Secrets that come in files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace import Client
from headrace.config.secret_files import read_secret_files
from headrace.errors import ConfigError, InvalidRequest
from tests.harness.servers.up import clean_environment


def test_a_file_gives_the_variable(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("redis://:pass@redis:6379/0\n")
    (tmp_path / "key").write_text(" k \n")
    environ = {
        "HEADRACE_REDIS_URL_FILE": str(tmp_path / "url"),
        "HEADRACE_TORCHSERVE_API_KEY_FILE": str(tmp_path / "key"),
        "HEADRACE_API_KEY": "hr_1",
        "HEADRACE_API_KEY_FILE": "",
        # These are settings, which name files.
        "HEADRACE_CA_FILE": "ca.pem",
        "HEADRACE_TLS_KEY_FILE": "key.pem",
        "OTHER_FILE": "other",
    }
    read_secret_files(environ)
    assert environ == {
        "HEADRACE_REDIS_URL": "redis://:pass@redis:6379/0",
        "HEADRACE_TORCHSERVE_API_KEY": "k",
        "HEADRACE_API_KEY": "hr_1",
        "HEADRACE_CA_FILE": "ca.pem",
        "HEADRACE_TLS_KEY_FILE": "key.pem",
        "OTHER_FILE": "other",
    }


def test_a_wrong_file_is_an_error_that_names_it_and_not_the_secret(tmp_path: Path) -> None:
    gone, empty, bad = (tmp_path / name for name in ("gone", "empty", "bad"))
    empty.write_text("\n")
    bad.write_bytes(b"\xff")
    name = "HEADRACE_WEBHOOK_SECRETS_FILE"
    for path, problem in ((gone, "No such file"), (empty, "is empty"), (bad, "cannot be read")):
        with pytest.raises(ConfigError, match=f"{name}: {path} .*{problem}|{name}: .*{problem}"):
            read_secret_files({name: str(path)})
    with pytest.raises(ConfigError) as both:
        read_secret_files({name: str(empty), name.removesuffix("_FILE"): "whsec_private"})
    assert "both set" in str(both.value)
    assert "private" not in str(both.value)


def test_clients_and_commands_read_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key"
    key.write_text("hr_1\n")
    monkeypatch.setenv("HEADRACE_API_KEY_FILE", str(key))
    with Client("http://127.0.0.1:1") as client:
        assert client._http.headers["authorization"] == "Bearer hr_1"
    key.unlink()
    with pytest.raises(InvalidRequest, match="HEADRACE_API_KEY_FILE"):
        Client("http://127.0.0.1:1")
    environ = {**clean_environment(), "HEADRACE_REDIS_URL_FILE": str(key)}
    command = [sys.executable, "-m", "headrace", "health", "redis"]
    failed = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert f"HEADRACE_REDIS_URL_FILE: {key} cannot be read" in failed.stderr
    key.write_text("redis://:private@127.0.0.1:1/0")
    failed = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert "Redis at redis://:***@127.0.0.1:1/0" in failed.stderr
