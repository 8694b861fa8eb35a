"""The API over HTTPS, with certificates that the test has made."""

from __future__ import annotations

import socket
import ssl
import warnings
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from api import process
from headrace import Client
from headrace.errors import ServerUnreachable
from headrace.server.components import get_json
from headrace.server.health.probe import Component, check
from tests.harness.clients.clients import SHELLS, client_of
from tests.harness.fakes.worker import FakeWorker
from tests.harness.processes.forked import Forked
from tests.harness.servers.api_server import api_server, catalog
from tests.harness.servers.certificates import Authority
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.up import ROOT, clean_environment
from tests.harness.wait import wait_until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def serial_at(port: int) -> int:
    """The serial number of the certificate that a server shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), 20) as plain,
        context.wrap_socket(plain) as connection,
    ):
        der = connection.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


@pytest.mark.parametrize("shell", SHELLS)
def test_jobs_over_https_with_a_ca_of_ones_own(
    shell: str,
    redis_db: RedisServer,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = authority.sign()
    files = {"tls_cert_file": own.cert_file, "tls_key_file": own.key_file}
    with (
        FakeWorker(redis_db.url, "echo"),
        api_server(redis_db.url, catalog(echo={}), **files) as api,
    ):
        assert api.url.startswith("https://")
        with client_of(shell, api.url, ca_file=authority.ca_file) as client:
            assert client.result(client.submit("echo", {"x": "y" * 10_000}))["x"] == "y" * 10_000
            assert [one.value for one in client.map("echo", [1, 2], ordered=True)] == [1, 2]
        with (
            client_of(shell, api.url, retry_s=0) as client,
            pytest.raises(ServerUnreachable, match=r"(?i)certificate"),
        ):
            client.models()
        other = Authority(tmp_path, "other").ca_file
        with (
            client_of(shell, api.url, ca_file=other, retry_s=0) as client,
            pytest.raises(ServerUnreachable, match=r"(?i)certificate"),
        ):
            client.models()
        monkeypatch.setenv("HEADRACE_CA_FILE", str(authority.ca_file))
        with client_of(shell, api.url) as client:
            assert [model.name for model in client.models()] == ["echo"]
        settings = msgspec.structs.replace(api.app.settings, redis_url=None)
        assert check(Component.API, settings, None, {}).endswith(": 200")
        assert get_json("127.0.0.1", api.port, "/live", tls=True) == {"status": "live"}


def test_a_renewed_certificate_is_shown_without_a_restart(
    redis_db: RedisServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "CHECK_S", 0.05)
    first = authority.sign()
    files = {"tls_cert_file": first.cert_file, "tls_key_file": first.key_file}
    with (
        api_server(redis_db.url, catalog(echo={}), **files) as api,
        Client(api.url, ca_file=authority.ca_file) as client,
    ):
        client.models()
        assert serial_at(api.port) == first.serial
        first.cert_file.write_text("half of a file")
        second = authority.sign("second")
        first.key_file.write_bytes(second.key_file.read_bytes())
        assert serial_at(api.port) == first.serial, "what cannot be used changes nothing"
        first.cert_file.write_bytes(second.cert_file.read_bytes())
        wait_until(lambda: serial_at(api.port) == second.serial, "the new certificate is shown")
        client.models()


def test_nothing_older_than_tls_1_2_is_spoken(redis_db: RedisServer, authority: Authority) -> None:
    own = authority.sign()
    files = {"tls_cert_file": own.cert_file, "tls_key_file": own.key_file}

    def spoken(version: ssl.TLSVersion) -> str | None:
        context = ssl.create_default_context(cafile=str(authority.ca_file))
        # So that it is not this client which refuses what is old.
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = context.maximum_version = version
        with (
            socket.create_connection(("127.0.0.1", api.port), 20) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            return connection.version()

    with api_server(redis_db.url, catalog(echo={}), **files) as api:
        assert spoken(ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        assert spoken(ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
        for old in (ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1):
            # By the server: asyncio closes where it could send the alert.
            with pytest.raises(ssl.SSLError, match=r"(?i)alert protocol version|EOF occurred"):
                spoken(old)


def test_a_certificate_that_cannot_be_used_keeps_the_api_from_starting(
    redis_db: RedisServer, authority: Authority, tmp_path: Path
) -> None:
    own, other = authority.sign(), authority.sign("other")
    models = tmp_path / "models.yaml"
    models.write_text("models: {echo: {handler: echo}}\n")
    for number, (cert, key, said) in enumerate(
        (
            (own.cert_file, other.key_file, "cannot be used"),
            (tmp_path / "none.pem", own.key_file, "No such file"),
            ("", own.key_file, "tls_cert_file is not"),
        )
    ):
        environ = clean_environment(
            HEADRACE_REDIS_URL=redis_db.url, HEADRACE_MODELS_FILE=str(models),
            HEADRACE_TLS_CERT_FILE=str(cert), HEADRACE_TLS_KEY_FILE=str(key),
        )  # fmt: skip
        log = tmp_path / f"{number}.log"
        assert Forked(["api"], environ, ROOT, log).wait(60) == 2
        assert said in log.read_text()
