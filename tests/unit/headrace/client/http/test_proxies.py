"""Which proxy of the environment a client uses, and what it reports of one that it cannot use."""

from __future__ import annotations

import importlib.util
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.client import Client
from headrace.client.http.proxies import proxy_for
from headrace.errors import InvalidRequest, ServerUnreachable

PROXY = "http://me:secret@proxy.example:3128"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080", "http://localhost:8080", "http://LOCALHOST", "http://[::1]:80",
        "http://127.9.9.9", "http://api.localhost", "http://0.0.0.0:1", "http://[::]:1",
        "http://[::ffff:127.0.0.1]:80", "https://127.0.0.1",
        "http://localhost.:8080",
    ],
)  # fmt: skip
def test_this_machine_is_reached_directly(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "socks5://x:1")
    assert proxy_for(url) is None
    Client(url).close()


@pytest.mark.parametrize(
    ("exceptions", "url", "direct"),
    [
        ("", "http://10.1.2.3", False),
        ("*", "http://a.example", True),
        ("a.example", "http://a.example", True),
        ("a.example", "http://b.a.example:8080", True),
        (".a.example", "http://b.a.example", True),
        ("*.a.example", "http://b.a.example", True),
        ("a.example", "http://ba.example", False),
        ("A.Example.", "http://a.example", True),
        ("x, a.example", "http://a.example", True),
        ("x a.example", "http://a.example", True),
        ("a.example:8080", "http://a.example:8080", True),
        ("a.example:80", "http://a.example", True),
        ("a.example:8080", "http://a.example", False),
        ("10.0.0.0/8", "http://10.1.2.3", True),
        ("10.0.0.0/16", "http://10.1.2.3", False),
        ("10.1.2.3", "http://10.1.2.3:8080", True),
        ("fd00::/8", "http://[fd12::1]", True),
        ("[fd12::1]", "http://[fd12::1]:9", True),
        ("10.1.2.3:8080", "http://10.1.2.3:8080", True),
        ("10.1.2.3:80", "http://10.1.2.3", True),
        ("10.1.2.3:8080", "http://10.1.2.3", False),
        ("[fd12::1]:9", "http://[fd12::1]:9", True),
        ("[fd12::1]:8", "http://[fd12::1]:9", False),
        ("a.example", "http://a.example.", True),
        ("a.example.:80", "http://a.example", True),
        ("nonsense/8,[,::::", "http://10.1.2.3", False),
    ],
)
@pytest.mark.parametrize("variable", ["NO_PROXY", "no_proxy"])
def test_no_proxy_names_hosts_domains_and_networks(
    monkeypatch: pytest.MonkeyPatch, variable: str, exceptions: str, url: str, direct: bool
) -> None:
    monkeypatch.setenv("HTTP_PROXY", PROXY)
    monkeypatch.setenv(variable, exceptions)
    assert (proxy_for(url) is None) is direct


def test_the_proxy_of_the_scheme_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://all.example:1")
    monkeypatch.setenv("https_proxy", "proxy.example:2")
    shown = [
        getattr(proxy_for(f"{scheme}://a.example"), "shown", "") for scheme in ("http", "https")
    ]
    assert shown == ["http://all.example:1 (ALL_PROXY)", "http://proxy.example:2 (https_proxy)"]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("socks4://me:secret@h:1", "of the kind socks4://, which cannot be used"),
        ("ftp://me:secret@h:1", "of the kind ftp://"),
        ("http://me:secret@h:port", "is not the URL of a proxy"),
        ("http://me:secret@", "is not the URL of a proxy"),
        ("http://me:secret@[::1", "is not the URL of a proxy"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, url: str, problem: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", url)
    with pytest.raises(InvalidRequest, match=f"^ALL_PROXY .*{problem}") as caught:
        Client("http://a.example")
    assert "secret" not in f"{caught.value} {caught.value.hint}"
    assert "NO_PROXY" in caught.value.hint


@pytest.mark.skipif(importlib.util.find_spec("socksio") is not None, reason="socksio is installed")
def test_a_socks_proxy_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://h:1")
    with pytest.raises(InvalidRequest, match=r"ALL_PROXY names a SOCKS proxy.*socksio"):
        Client("http://a.example")


@pytest.mark.parametrize(
    "url", ["http://[", "http://[::1", "http://", "nonsense://", "http://a..b"]
)
def test_an_address_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", PROXY)
    with pytest.raises(InvalidRequest, match="is not the address of a server"):
        Client(url)


@contextmanager
def proxy_that_refuses() -> Iterator[int]:
    """A proxy that answers each request with a page of its own; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                page = b"<h1>Forbidden</h1>"
                head = b"HTTP/1.1 403 No\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
                connection.sendall(head % len(page) + page)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join(60)


def test_an_error_names_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy_that_refuses() as port:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:secret@127.0.0.1:{port}")
        with Client("http://headrace.example", retry_s=0) as client:
            shown = f"http://127.0.0.1:{port} (HTTP_PROXY)"
            with pytest.raises(Exception, match="403") as refused:
                client.models()
            assert shown in getattr(refused.value, "hint", "")
    with Client("http://headrace.example", retry_s=0) as client:
        with pytest.raises(ServerUnreachable) as unreached:
            client.models()
        assert f"through the proxy {shown}" in str(unreached.value)
    assert "secret" not in f"{unreached.value} {refused.value}"
