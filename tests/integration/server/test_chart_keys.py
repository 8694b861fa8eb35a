"""The Job of the Helm chart that makes API keys: each is in a Secret, once, and Redis knows it."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.harness.deploy.helm import CHART
from tests.harness.servers.certificates import Authority
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.up import clean_environment, headrace

pytestmark = pytest.mark.slow

SECRETS = "/api/v1/namespaces/ml/secrets"


class Kubernetes:
    """The part of the Kubernetes API that keeps Secrets, for one account.

    Attributes:
        secrets: name -> object.
        refuses: no Secret is written.
    """

    def __init__(self, folder: Path) -> None:
        self.secrets: dict[str, Any] = {}
        self.refuses = False
        self.account = folder / "account"
        self.account.mkdir()
        authority = Authority(folder)
        for name, text in (("namespace", "ml"), ("token", "t0ken\n")):
            (self.account / name).write_text(text)
        (self.account / "ca.crt").write_bytes(authority.ca_file.read_bytes())
        certificate = authority.sign()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.cert_file, certificate.key_file)
        handler = type("Handler", (Handler,), {"kubernetes": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)

    def key(self, name: str) -> str:
        return base64.b64decode(self.secrets[f"my-key-{name}"]["data"]["key"]).decode()


class Handler(BaseHTTPRequestHandler):
    kubernetes: Kubernetes

    def do_GET(self) -> None:
        found = self.kubernetes.secrets.get(self.path.removeprefix(f"{SECRETS}/"))
        self.answer(200 if found else 404, found or {"reason": "NotFound"})

    def do_POST(self) -> None:
        assert self.path == SECRETS
        self.keep(None)

    def do_PATCH(self) -> None:
        assert self.headers["Content-Type"] == "application/merge-patch+json"
        self.keep(self.path.removeprefix(f"{SECRETS}/"))

    def keep(self, name: str | None) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.kubernetes.refuses:
            self.answer(403, {"reason": "Forbidden"})
            return
        self.kubernetes.secrets[name or body["metadata"]["name"]] = body
        self.answer(201, body)

    def answer(self, status: int, content: Any) -> None:
        if self.headers["Authorization"] != "Bearer t0ken":
            status, content = 401, {"reason": "Unauthorized"}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[Kubernetes]:
    found = Kubernetes(tmp_path)
    thread = threading.Thread(target=found.server.serve_forever, daemon=True)
    thread.start()
    yield found
    found.server.shutdown()
    thread.join(60)
    found.server.server_close()


def test_each_key_is_made_once_and_kept_in_a_secret(
    tmp_path: Path, redis_db: RedisServer, kubernetes: Kubernetes
) -> None:
    command = tmp_path / "bin" / "headrace"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m headrace "$@"\n')
    command.chmod(0o755)
    environ = clean_environment(
        HEADRACE_REDIS_URL=redis_db.url, KUBERNETES_SERVICE_HOST="127.0.0.1",
        KUBERNETES_SERVICE_PORT=str(kubernetes.server.server_port),
    )  # fmt: skip
    environ["PATH"] = f"{command.parent}:{environ['PATH']}"

    def run(client: str = "submit,read") -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, str(CHART / "files" / "create_keys.py"), str(kubernetes.account),
             "my", f"client:{client}", "metrics:read"],
            cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def listed() -> dict[str, list[str]]:
        text = headrace(
            "keys", "list", "--json", cwd=tmp_path, HEADRACE_REDIS_URL=redis_db.url
        ).stdout
        return {one["id"]: one["scopes"] for one in map(json.loads, text.splitlines())}

    kubernetes.refuses = True
    status, text = run()
    assert status != 0
    assert "403" in text
    assert listed() == {}, "a key that no Secret has is revoked"
    kubernetes.refuses = False
    status, text = run()
    assert status == 0, text
    first = {name: kubernetes.key(name) for name in ("client", "metrics")}
    assert listed() == {
        first["client"].split("_")[1]: ["read", "submit"],
        first["metrics"].split("_")[1]: ["read"],
    }
    assert not any(key in text for key in first.values()), "a log is no place for a key"
    assert run()[1].count("there already") == 2
    changed = run(client="submit")[1].splitlines()
    assert ["delete the Secret" in line for line in changed] == [True, False], changed
    assert {name: kubernetes.key(name) for name in first} == first
    # Redis has lost its data: the keys in the Secrets are worth nothing.
    redis_db.client().flushdb()
    assert run()[0] == 0
    second = {name: kubernetes.key(name) for name in first}
    assert not set(second.values()) & set(first.values())
    assert listed().keys() == {key.split("_")[1] for key in second.values()}
