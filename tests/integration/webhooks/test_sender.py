"""One webhook over HTTP, and the address that it is sent to: whatever a resolver says, and when."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.config.settings import Settings
from headrace.errors import ConfigError
from tests.harness.servers.certificates import Authority
from tests.harness.servers.webhook_receiver import Receiver, webhook_receiver
from workers.background.webhooks.http import WebhookResponse, WebhookSender, look_up

HEADERS = {"webhook-id": "msg_1"}
BODY = b'{"data":{"id":"1"}}'


class Resolver:
    """Answers names with the given replies in turn; the last one stays."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def send(
    url: str, resolver: Any = look_up, *, times: int = 1, **settings: Any
) -> list[WebhookResponse]:
    options = {
        "webhook_allow_http": True, "webhook_timeout_s": 20, "webhook_connect_timeout_s": 10,
        **settings,
    }  # fmt: skip

    async def go() -> list[WebhookResponse]:
        sender = WebhookSender(Settings(**options), resolver)
        try:
            return [await sender.send(url, HEADERS, BODY) for _ in range(times)]
        finally:
            await sender.close()

    return asyncio.run(go())


def test_the_name_is_looked_up_once_and_what_was_judged_is_connected_to() -> None:
    # Rebinding: the first answer is good, every later one is the machine itself.
    with webhook_receiver() as receiver:
        resolver = Resolver(["127.0.0.1"], ["127.0.0.2"])
        url = f"http://rebinding.example:{receiver.port}/200?a=b"
        first, second = send(url, resolver, times=2, webhook_allow_networks=("127.0.0.1/32",))
    assert first == WebhookResponse(200, answers=True)
    assert "rebinding.example is in a private or reserved network" in second.error
    assert second.final
    assert len(resolver.asked) == 2, "once for each try"
    (got,) = receiver.got
    assert got.path == "/200?a=b"
    assert got.headers["host"] == f"rebinding.example:{receiver.port}"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "fe80::1%lo"])
def test_a_name_in_a_private_network_is_not_connected_to(address: str) -> None:
    with webhook_receiver() as receiver:
        (sent,) = send(f"http://inside.example:{receiver.port}/200", Resolver([address]))
        assert sent.final
        assert "private or reserved" in sent.error
        assert receiver.got == []


def test_of_several_addresses_only_the_good_ones_are_tried() -> None:
    with webhook_receiver() as receiver:
        url = f"http://several.example:{receiver.port}/200"
        # Nothing listens at the first; the last is not allowed.
        mixed = Resolver(["127.0.0.9", "127.0.0.1", "10.0.0.1"])
        assert send(url, mixed, webhook_allow_networks=("127.0.0.0/8",))[0].status == 200
        assert send(url, mixed, webhook_allow_networks=("127.0.0.9/32",))[0].status == 0


def test_a_redirect_into_a_private_network_goes_nowhere() -> None:
    with webhook_receiver() as receiver:
        url = f"http://outside.example:{receiver.port}/to"
        (sent,) = send(url, Resolver(["127.0.0.1"]), webhook_allow_networks=("127.0.0.1/32",))
        assert sent.status == 307
        assert "redirects are not followed" in sent.error
        assert [got.path for got in receiver.got] == ["/to"]


def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with webhook_receiver() as receiver, webhook_receiver() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, proxy.url(""))
        (sent,) = send(receiver.url("/200"), webhook_allow_networks=("127.0.0.0/8",))
        assert (sent.status, proxy.got) == (200, [])


def test_what_a_server_of_another_protocol_says_is_repeated_to_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        sending = pool.submit(send, url, webhook_allow_networks=("127.0.0.0/8",))
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"-ERR secret banner\r\n\r\n")
            (sent,) = sending.result()
    assert sent == WebhookResponse(error="the response is not valid HTTP")


def test_a_name_that_nobody_knows_and_one_that_is_asked_for_too_long() -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError("Name or service not known")

    async def silent(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    (sent,) = send("http://nobody.example/", unknown)
    assert "cannot be looked up: Name or service not known" in sent.error
    assert not sent.final
    (sent,) = send("http://silent.example/", silent, webhook_timeout_s=0.1)
    assert sent.error == "no answer within 0.1 s"

    async def broken(host: str, port: int) -> Sequence[str]:
        raise RuntimeError("unexpected")

    (sent,) = send("http://broken.example/", broken)
    assert (sent.error, sent.final) == ("it cannot be sent: unexpected", False)
    (sent,) = send("http://plain.example/", webhook_allow_http=False)
    assert sent.final, "what was allowed at the submit need not be now"


def over_tls(url: str, ca_file: Path | None, address: str = "127.0.0.1") -> WebhookResponse:
    allowed = ("127.0.0.0/8",)
    resolver = Resolver([address])
    return send(url, resolver, webhook_allow_networks=allowed, webhook_ca_file=ca_file)[0]


def tls_context(authority: Authority) -> ssl.SSLContext:
    certificate = authority.sign()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert_file, certificate.key_file)
    return context


def https(receiver: Receiver, host: str) -> str:
    return f"https://{host}:{receiver.port}/200"


def test_the_certificate_is_to_be_of_the_name_in_the_url(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with webhook_receiver(tls_context(authority)) as receiver:
        for host in ("localhost", "127.0.0.1"):
            assert over_tls(https(receiver, host), authority.ca_file).status == 200
        other = over_tls(https(receiver, "other.example"), authority.ca_file)
        assert "CERTIFICATE_VERIFY_FAILED" in other.error
        unknown = over_tls(https(receiver, "localhost"), None)
        assert "CERTIFICATE_VERIFY_FAILED" in unknown.error
        assert len(receiver.got) == 2
    (tmp_path / "none.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match=r"webhook_ca_file .*none\.pem cannot be read"):
        over_tls("https://x.example/", tmp_path / "none.pem")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("120", 120), ("-1", 0), ("nan", 0), ("1e9", 3600), ("soon", 0), ("", 0),
     ("Fri, 31 Dec 1999 23:59:59 GMT", 0), ("Fri, 31 Dec 2199 23:59:59 GMT", 3600)],
)  # fmt: skip
def test_when_a_receiver_says_to_come_again(text: str, seconds: float) -> None:
    from workers.background.webhooks.http import _retry_after_s

    assert _retry_after_s(text) == seconds
